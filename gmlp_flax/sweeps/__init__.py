"""Many runs of one experiment: their points, who trains them, how far they are."""
