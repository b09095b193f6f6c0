"""Figures and numbers of one run: spatial filters, attention, curves, shift invariance."""
