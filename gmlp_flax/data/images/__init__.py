"""Labelled images: where they are kept, how they are decoded and augmented."""
