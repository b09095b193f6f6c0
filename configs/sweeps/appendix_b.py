"""Appendix B of the paper (Table 10): Transformers of equal size, ever deeper and thinner.

    python scripts/sweep.py --sweep=configs/sweeps/appendix_b.py:cpu --out=runs/thin --config.data.train=books.jsonl.xz

ARGUMENT: the scale, cpu (default), gpu or paper, as in table4.py. Seeds 0, 1 and 2; at cpu 0 and 1.
"""

from gmlp_flax import recipes, sweep

ROWS = ("thin_12", "thin_24", "thin_48", "thin_96")


def get_sweep(arg: str = "cpu") -> sweep.Points:
    """See the module's docstring."""
    return recipes.by_depth(ROWS, (), arg)
