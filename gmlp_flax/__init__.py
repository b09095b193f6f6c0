"""gMLP, aMLP and the token mixers they are compared with, in JAX and Flax ("Pay Attention to MLPs")."""

__version__ = "0.1.0"
