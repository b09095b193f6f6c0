"""Table 3's rows and aMLP in small at each of several peak rates, for 400 steps: how their own rates were chosen.

    python scripts/sweep.py --sweep=configs/sweeps/table3_rates.py --out=runs/rates --config.data.train=books.jsonl.xz

ARGUMENT: rates with commas between them; 1e-3,2e-3,4e-3,8e-3,1.6e-2 unless given. Their seed, 100, is not one of
Table 3's. Set the best of each row as SMALL_RATES in configs/c4_ablation.py.
"""

from gmlp_flax import recipes, sweep

ROWS = ("bert", "bert_rel", "bert_rel_only", "mixer", "linear", "additive", "multiplicative", "sgu", "amlp_36")


def get_sweep(arg: str = "1e-3,2e-3,4e-3,8e-3,1.6e-2") -> sweep.Points:
    """See the module's docstring."""
    setting = {"steps": [400], "seed": [100], "eval.every": [0]}
    configs = {"config": [recipes.published(row, "cpu") for row in ROWS]}
    return sweep.product(configs, {"optimizer.learning_rate": [float(rate) for rate in arg.split(",")]}, setting)
