"""Corpora, tokenizers, and token ids on disk, packed into windows."""
