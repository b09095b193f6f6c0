"""Weights in and out: what other libraries have published, in our run folders, and back."""
