"""Formats of weights: our own exported folders, timm's, vision_transformer's and transformers', each
opened as a `saved.SavedModel`."""
