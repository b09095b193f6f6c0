"""Weights in and out: published weights of other libraries as folders that we load, and ours in
their formats."""
