"""Sentences, pairs of sentences, and questions on passages."""
