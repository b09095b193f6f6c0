"""The paper's Figure 7: models of several depths, and three of them on ever more data, to be finetuned.

    python scripts/sweep.py --sweep=configs/sweeps/figure7.py:cpu --out=runs/figure7 --config.data.train=books.jsonl.xz

ARGUMENT: the scale, as in table4.py. Depths are half, once and twice, data once, twice, four times and, but for cpu,
eight times the ablation's; one seed.
"""

from gmlp_flax import recipes, sweep

MIDDLE = ("transformer_12", "gmlp_36", "amlp_36")
OTHERS = ("transformer_6", "gmlp_18", "amlp_18", "transformer_24", "gmlp_72", "amlp_72")


def get_sweep(arg: str = "cpu") -> sweep.Points:
    """See the module's docstring."""
    times = (2, 4) if arg == "cpu" else (2, 4, 8)
    rows = *OTHERS, *MIDDLE, *(recipes.longer(row, each) for row in MIDDLE for each in times)
    return sweep.product({"config": [recipes.published(row, arg) for row in rows], "seed": [0]})
