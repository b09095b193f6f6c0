"""The paper's Figure 9: the gMLP of Table 3 without the Toeplitz constraint, its checkpoints kept; one run.

    python scripts/sweep.py --sweep=configs/sweeps/figure9.py:cpu --out=runs/figure9 --config.data.train=books.jsonl.xz

ARGUMENT: the scale, cpu (default), gpu or paper, as in table3.py.
"""

from gmlp_flax import recipes, sweep


def get_sweep(arg: str = "cpu") -> sweep.Points:
    """See the module's docstring."""
    every = {"model.spatial": ["dense"], "checkpoint.keep": [100]}
    return sweep.product({"config": [recipes.published("sgu", arg)]}, every)
