"""How the peak learning rates of the small models were chosen (SMALL_RATES in configs/c4_ablation.py).

    gmlp sweep --sweep=table3_rates --out=runs/rates --config.data.train=books.jsonl.xz

ARGUMENT: the round. No round uses a seed of Table 3.
    first         (default) Table 3's rows and amlp_36: five rates per row, for 400 steps
    second        the best two rates of the first round, for all 900 steps with two seeds; the mean decides
    depths        other depths: three rates for all steps with one seed. These are half, once and twice the rate of the
                  middle depth, or a quarter, half and once that rate
    transformers  the Transformers' best two rates with another seed, as their seeds differ by much; the mean decides
"""

from gmlp_flax.config import arguments
from gmlp_flax.paper import recipes
from gmlp_flax.sweeps import points

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


def get_sweep(arg: str = "first") -> points.Points:
    """See the module's docstring."""
    (arg,) = arguments(arg or "first", tuple(ROUNDS))
    steps, seeds, rates = ROUNDS[arg]
    rows = (
        points.product({"config": [recipes.published(row, "cpu")], "optimizer.learning_rate": values})
        for row, values in rates.items()
    )
    return points.product(points.chained(*rows), {"steps": [steps], "seed": seeds, "eval.every": [0]})
