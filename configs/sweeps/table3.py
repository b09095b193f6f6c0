"""Table 3 of the paper: its eight rows, three seeds each, in the setting of configs/c4_ablation.py.

    python scripts/sweep.py --sweep=configs/sweeps/table3.py:cpu --out=runs/table3 --config.data.train=books.jsonl.xz

ARGUMENT: the scale, cpu (default), gpu or paper; configs/c4_ablation.py says what each is (cpu is its `small`). At cpu
and gpu --config.data.train is to be given. 24 runs; --index=I --of=N shares them among N machines.
"""

from gmlp_flax import recipes, sweep

ROWS = ("bert", "bert_rel", "bert_rel_only", "mixer", "linear", "additive", "multiplicative", "sgu")


def get_sweep(arg: str = "cpu") -> sweep.Points:
    """See the module's docstring."""
    return sweep.product({"config": [recipes.published(row, arg) for row in ROWS], "seed": [0, 1, 2]})
