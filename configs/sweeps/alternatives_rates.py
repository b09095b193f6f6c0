"""Searches the rates of the rows of `gmlp reproduce alternatives` (SIBLING_SETTINGS in
configs/c4_ablation.py).

    gmlp sweep --sweep=alternatives_rates --out=runs/rates --config.data.train=books/data
    gmlp sweep --sweep=alternatives_rates:cifar10 --out=runs/image_rates \\
        --config.data.train=cifar10/

ARGUMENT: the round. No round uses a seed of a table, and none scores what a table holds out
(config.data.search).
    rates    (default) every row: five rates from one grid, for all 900 steps
    factors  rows with learned logits that do not depend on their inputs: factors on the rate of
             these logits, at two rates
    norms    every row with and without BERT's norm on the embedding, at its own rate and factors
    cifar10, listops, bytes, pixels
             the rows of this column at the same rates, for as many steps as the column has

The grid is that of configs/sweeps/table3_rates.py, which searched the rows of Table 3.
docs/results/table3.md says what was tried for the siblings.
"""

from typing import Any

from gmlp_flax.config import arguments
from gmlp_flax.paper import recipes
from gmlp_flax.paper.alternatives import COLUMNS, RATES, ROWS, SEARCH_SEED
from gmlp_flax.sweeps import points

# Rows -> the parameters that are logits of a softmax, or factors of such logits.
LOGITS = {
    ("bert_rel", "bert_rel_only", "bert_t5"): "relative/bias",
    ("random", "random_vanilla"): "random/logits",
    ("factorized",): "rows|columns",
    ("lightweight", "growing"): "kernel/logits",
    ("sgu", "amlp_36"): "spatial/taps",
}
FACTORS = (1, 4, 16)
OF_COLUMNS = tuple(
    name
    for name, column in COLUMNS.items()
    if not column.starts and not column.rates and name != "mlm"
)


def _configs(rows) -> list[str]:
    return [recipes.published(row, "cpu") for row in rows]


def _of_column(name: str) -> points.Points:
    """Logits that are learned apart from their inputs have the column's factor: without it they
    stay as drawn."""
    column = COLUMNS[name]
    tried = []
    for row in column.rows:
        keys: dict[str, Any] = {"config": [column.of(row, "cpu")]}
        for key, value in column.settings("cpu", row).items():
            keys[key] = [value]
        keys["optimizer.learning_rate"] = RATES
        tried.append(points.product(keys))
    return points.chained(*tried)


def _with_factors() -> points.Points:
    """Every factor on the rate of the logits, for each row that has such logits."""
    tried = []
    for rows, pattern in LOGITS.items():
        multipliers = [(f"{pattern}={factor}",) for factor in FACTORS]
        keys = {
            "config": _configs(rows),
            "optimizer.learning_rate": (2e-3, 4e-3),
            "optimizer.lr_multipliers": multipliers,
        }
        tried.append(points.product(keys))
    return points.chained(*tried)


def get_sweep(arg: str = "rates") -> points.Points:
    """See the module's docstring."""
    (name,) = arguments(arg or "rates", ("rates", "factors", "norms", *OF_COLUMNS))
    if name == "rates":
        tried = points.product({"config": _configs(ROWS), "optimizer.learning_rate": RATES})
    elif name == "factors":
        tried = _with_factors()
    elif name in OF_COLUMNS:
        tried = _of_column(name)
    else:
        tried = points.product({"config": _configs(ROWS), "model.embedding_norm": (False, True)})
    return points.product(tried, {"seed": [SEARCH_SEED], "data.search": [True]})
