"""Table 4 of the paper: gMLPs and Transformers of several depths, in the setting of configs/c4_ablation.py.

    python scripts/sweep.py --sweep=configs/sweeps/table4.py:cpu --out=runs/table4 --config.data.train=books.jsonl.xz

ARGUMENT: the scale, cpu (default), gpu or paper; configs/c4_ablation.py says what each is (cpu is its `small`). At cpu
and gpu --config.data.train is to be given, and the deepest model of each kind is left out. Seeds 0, 1 and 2; at cpu 0
and 1. --index=I --of=N shares the runs among N machines.
"""

from gmlp_flax import recipes, sweep

ROWS = ("gmlp_18", "gmlp_36", "gmlp_72", "transformer_6", "transformer_12", "transformer_24")
DEEPEST = ("gmlp_144", "transformer_48")


def get_sweep(arg: str = "cpu") -> sweep.Points:
    """See the module's docstring."""
    return recipes.by_depth(ROWS, DEEPEST, arg)
