"""How the peak rates of the small models were chosen (SMALL_RATES in configs/c4_ablation.py).

    python scripts/sweep.py --sweep=configs/sweeps/table3_rates.py --out=runs/rates --config.data.train=books.jsonl.xz

ARGUMENT: of Table 3's rows and aMLP `first` (default), five rates a row for 400 steps, then `second`, the best two of
these for all 900 steps with two seeds, whose mean decides. Of what is less or more deep `depths`, three rates for all
steps with one seed: half, once and twice the middle depth's rate or a quarter, half and once of it; then
`transformers`, the best two of the Transformers' with another seed, as their seeds differ by much, and the mean
decides. No seed is one of Table 3's.
"""

from gmlp_flax import recipes, sweep
from gmlp_flax.config import arguments

GRID = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
FINALISTS = {
    "bert": (4e-3, 8e-3),
    "bert_rel": (4e-3, 8e-3),
    "bert_rel_only": (8e-3, 1.6e-2),
    "mixer": (4e-3, 8e-3),
    "linear": (1e-3, 2e-3),
    "additive": (8e-3, 1.6e-2),
    "multiplicative": (8e-3, 1.6e-2),
    "sgu": (8e-3, 1.6e-2),
    "amlp_36": (2e-3, 4e-3),
}
DEPTHS = {
    "transformer_6": (4e-3, 8e-3, 1.6e-2),
    "transformer_24": (2e-3, 4e-3, 8e-3),
    "gmlp_18": (4e-3, 8e-3, 1.6e-2),
    "gmlp_72": (2e-3, 4e-3, 8e-3),
    "amlp_18": (2e-3, 4e-3, 8e-3),
    "amlp_72": (1e-3, 2e-3, 4e-3),
}
ROUNDS = {
    "first": (400, [100], dict.fromkeys(FINALISTS, GRID)),
    "second": (900, [100, 101], FINALISTS),
    "depths": (900, [100], DEPTHS),
    "transformers": (900, [101], {"transformer_6": (8e-3, 1.6e-2), "transformer_24": (2e-3, 4e-3)}),
}


def get_sweep(arg: str = "first") -> sweep.Points:
    """See the module's docstring."""
    (arg,) = arguments(arg or "first", tuple(ROUNDS))
    steps, seeds, rates = ROUNDS[arg]
    rows = (
        sweep.product({"config": [recipes.published(row, "cpu")], "optimizer.learning_rate": values})
        for row, values in rates.items()
    )
    return sweep.product(sweep.chained(*rows), {"steps": [steps], "seed": seeds, "eval.every": [0]})
