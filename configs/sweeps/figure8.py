"""The paper's Figures 7 and 8: Table 4's gMLPs and Transformers, and aMLPs beside them.

    python scripts/sweep.py --sweep=configs/sweeps/figure8.py:cpu --out=runs/figure8 --config.data.train=books.jsonl.xz

ARGUMENT: the scale, as in table4.py, which trains the same runs but for the aMLPs': with --out=runs/table4 only those.
"""

from gmlp_flax import recipes, sweep

ROWS = (
    "amlp_18", "amlp_36", "amlp_72", "gmlp_18", "gmlp_36", "gmlp_72",
    "transformer_6", "transformer_12", "transformer_24",
)
DEEPEST = ("gmlp_144", "transformer_48")


def get_sweep(arg: str = "cpu") -> sweep.Points:
    """See the module's docstring."""
    return recipes.by_depth(ROWS, DEEPEST, arg)
