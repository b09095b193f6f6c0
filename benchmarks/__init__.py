"""Measurements of speed and memory, and the comparisons with timm and transformers."""
