"""Weights in and out: published weights of other libraries as run folders, and run folders as their weights."""
