"""Sweeps: `get_sweep(argument)` returns points."""
