"""The paper's Figure 4: the gMLP of Table 3, whose spatial filters are drawn; one run.

    python scripts/sweep.py --sweep=configs/sweeps/figure4.py:cpu --out=runs/figure4 --config.data.train=books.jsonl.xz

ARGUMENT: the scale, cpu (default), gpu or paper, as in table3.py.
"""

from gmlp_flax import recipes, sweep


def get_sweep(arg: str = "cpu") -> sweep.Points:
    """See the module's docstring."""
    return sweep.product({"config": [recipes.published("sgu", arg)]})
