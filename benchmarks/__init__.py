"""Measurements of speed and memory, and the comparison with timm."""
