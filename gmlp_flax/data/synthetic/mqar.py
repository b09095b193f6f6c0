"""Multi-query associative recall (Arora et al., "Zoology", arXiv 2312.04927, section 3).

    Tokens   2 8 4 7 0 0 4 0 0 0 0 0 2 0 0 0
    Targets  . . . . . . 7 . . . . . 8 . . .

An example begins with pairs of a key and its value. Each key stands there again later, and asks for
its value. The definition is that of the published generator (HazyResearch/zoology,
zoology/data/multiquery_ar.py); this one draws other numbers.
"""

import numpy as np

from gmlp_flax.data.synthetic.recipe import IGNORED, Examples, Recipe
from gmlp_flax.errors import ConfigError


def check(recipe: Recipe) -> None:
    """Raises ConfigError if the sizes do not fit together."""
    if recipe.length % 2 or 4 * recipe.pairs > recipe.length:
        raise ConfigError(
            f"config.model.length is {recipe.length} and config.synthetic.pairs {recipe.pairs}: "
            "expected an even length of at least four tokens for each pair"
        )
    if recipe.vocab_size < 2 * recipe.pairs + 2:
        raise ConfigError(
            f"config.model.vocab_size is {recipe.vocab_size}: {recipe.pairs} different keys need at "
            f"least {2 * recipe.pairs + 2}"
        )


def gap_shares(slots: int, power: float) -> np.ndarray:
    """The probability that a query stands in each slot of two tokens behind the pairs, float64
    [slots]: proportional to i^(power - 1) for the slots 1, 2, ..."""
    weights = np.arange(1, slots + 1) ** (power - 1)
    return weights / weights.sum()


def generate(recipe: Recipe, rng: np.random.Generator, count: int, training: bool) -> Examples:
    """So many examples. Training and held-out examples are alike, and so are those for models that
    see later tokens: no answer stands in the text."""
    pairs = recipe.pairs
    middle = recipe.vocab_size // 2
    keys = draw_distinct(rng, count, pairs, 1, middle)
    values = draw_distinct(rng, count, pairs, middle, recipe.vocab_size)
    if recipe.fill:
        tokens = rng.integers(recipe.vocab_size, size=(count, recipe.length))
    else:
        tokens = np.zeros((count, recipe.length), np.int64)
    context = 2 * pairs
    tokens[:, 0:context:2] = keys
    tokens[:, 1:context:2] = values
    slots = (recipe.length - context) // 2
    chosen = draw_slots(rng, count, pairs, gap_shares(slots, recipe.power))
    positions = context + 2 * chosen
    targets = np.full((count, recipe.length), IGNORED)
    np.put_along_axis(tokens, positions, keys, axis=1)
    np.put_along_axis(targets, positions, values, axis=1)
    return Examples(tokens.astype(np.int32), targets.astype(np.int32))


def draw_distinct(
    rng: np.random.Generator, count: int, size: int, first: int, end: int
) -> np.ndarray:
    """`size` different ids from `first` to before `end`, all orders equally likely: int [count,
    size]."""
    drawn = rng.integers(first, end, size=(count, size))
    repeated = has_repeats(drawn)
    while repeated.any():
        drawn[repeated] = rng.integers(first, end, size=(repeated.sum(), size))
        repeated = has_repeats(drawn)
    return drawn


def has_repeats(rows: np.ndarray) -> np.ndarray:
    """Whether a number stands in a row more than once: bool [rows]."""
    in_order = np.sort(rows, axis=1)
    return (in_order[:, 1:] == in_order[:, :-1]).any(axis=1)


def draw_slots(rng: np.random.Generator, count: int, size: int, shares: np.ndarray) -> np.ndarray:
    """`size` different slots, one after the other, each with a probability proportional to its
    share among the slots that are left: int [count, size].

    The largest of log(share) + Gumbel noise, in order, are such a draw (Vieira 2014).
    """
    noise = rng.gumbel(size=(count, len(shares)))
    scores = np.log(shares) + noise
    in_order = np.argsort(-scores, axis=1)
    return in_order[:, :size]
