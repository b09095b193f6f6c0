"""How the settings of the small models were chosen (SMALL_SETTINGS in configs/c4_ablation.py).

    gmlp sweep --sweep=table3_rates --out=runs/rates --config.data.train=books/data

ARGUMENT: the round. No round uses a seed of Table 3, and none scores what it holds out
(config.data.search). The rounds that chose today's settings did score it, with the seed 100.
    first     (default) the rows of Table 3 and amlp_36: five rates for each row, for 400 steps
    settings  the best rates for all 900 steps, with and without BERT's norm on the embedding, and
              with factors on the rate of a bias on logits, of Toeplitz taps and of the Mixer's MLP
              over tokens (docs/choices.md)
    long      learned positions over ten times as many steps, where they leave their plateau
    depths    other depths with the factors and norms of the middle depth: rates around its own, for
              all 900 steps
    recipe    weight decay, warmup and clipping of the best and the worst row of `settings`, one at
              a time

docs/results/table3.md says what came of each.
"""

from collections.abc import Sequence

from gmlp_flax.config import arguments
from gmlp_flax.paper import recipes
from gmlp_flax.sweeps import points

ROWS = (
    "bert",
    "bert_rel",
    "bert_rel_only",
    "mixer",
    "linear",
    "additive",
    "multiplicative",
    "sgu",
    "amlp_36",
)
GRID = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


def _tried(
    rows: str,
    rates: Sequence[float],
    factors: Sequence[str] = ("",),
    norms: Sequence[bool] = (False,),
):
    """Every combination for each row; a factor is a line of optimizer.lr_multipliers, or empty for
    none."""
    return points.product(
        {
            "config": [recipes.published(row, "cpu") for row in rows.split()],
            "optimizer.learning_rate": rates,
            "optimizer.lr_multipliers": [(line,) if line else () for line in factors],
            "model.embedding_norm": norms,
        }
    )


def _factors(pattern: str, *factors: float) -> list[str]:
    return [f"{pattern}={factor:g}" for factor in factors]


BIAS = "relative/bias"
TAPS = "spatial/taps"
BOTH = (False, True)
RECIPE = {
    "optimizer.weight_decay": [0.0, 0.1],
    "optimizer.warmup": [30, 300],
    "optimizer.clip": [0.0, 0.1],
}
ROUNDS = {
    "first": (400, [_tried(" ".join(ROWS), GRID)]),
    "settings": (
        900,
        [
            _tried("bert", (2e-3, 4e-3, 8e-3), norms=BOTH),
            _tried("bert_rel bert_rel_only", (4e-3, 8e-3), _factors(BIAS, 4, 8, 16), BOTH),
            _tried("bert_rel bert_rel_only", (4e-3,)),
            _tried("bert_rel", (2e-3,), _factors(BIAS, 8, 16)),
            _tried("bert_rel_only", (2e-3,), _factors(BIAS, 16)),
            _tried("mixer", (2e-3, 4e-3, 8e-3, 1.6e-2), norms=BOTH),
            _tried("mixer", (4e-3,), _factors("token_mlp", 0.5, 4), (True,)),
            _tried("linear", (2e-3, 4e-3, 8e-3), norms=(True,)),
            _tried("additive", (2e-3, 4e-3, 8e-3), norms=(True,)),
            _tried("multiplicative", (4e-3, 8e-3), norms=(True,)),
            _tried("linear additive multiplicative", (4e-3,), _factors(TAPS, 4, 8), (True,)),
            _tried("linear multiplicative", (4e-3,), _factors(TAPS, 4)),
            _tried("additive", (4e-3,)),
            _tried("sgu", (4e-3, 8e-3), norms=BOTH),
            _tried("sgu", (4e-3,), _factors(TAPS, 4, 8), BOTH),
            _tried("sgu", (4e-3,), _factors(TAPS, 16)),
            _tried("sgu", (8e-3,), _factors(TAPS, 4)),
            _tried("amlp_36", (4e-3,)),
            _tried("amlp_36", (2e-3, 4e-3, 8e-3), norms=(True,)),
            _tried("amlp_36", (4e-3,), _factors(TAPS, 4, 8)),
            _tried("amlp_36", (4e-3,), _factors(TAPS, 4), (True,)),
        ],
    ),
    "long": (9000, [_tried("bert", (1e-3, 2e-3), norms=BOTH)]),
    "depths": (
        900,
        [
            _tried("transformer_6", (4e-3, 8e-3), _factors(BIAS, 16)),
            _tried("transformer_24", (2e-3, 4e-3), _factors(BIAS, 16)),
            _tried("gmlp_18", (4e-3, 8e-3), _factors(TAPS, 8)),
            _tried("gmlp_72", (2e-3, 4e-3), _factors(TAPS, 8)),
            _tried("amlp_18", (4e-3, 8e-3), _factors(TAPS, 4)),
            _tried("amlp_72", (2e-3, 4e-3), _factors(TAPS, 4)),
        ],
    ),
    "recipe": (
        900,
        [
            points.product(
                {"config": [recipes.published(row, "cpu") for row in ("bert_rel", "bert")]},
                {key: values},
            )
            for key, values in RECIPE.items()
        ],
    ),
}


def get_sweep(arg: str = "first") -> points.Points:
    """See the module's docstring."""
    (arg,) = arguments(arg or "first", tuple(ROUNDS))
    steps, tried = ROUNDS[arg]
    return points.product(
        points.chained(*tried), {"steps": [steps], "seed": [100], "data.search": [True]}
    )
