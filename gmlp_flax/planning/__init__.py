"""Plans: what a run would need on hardware that this machine does not have."""
