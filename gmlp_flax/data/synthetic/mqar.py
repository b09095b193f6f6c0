"""Multi-query associative recall (Arora et al., "Zoology", arXiv 2312.04927, section 3).

    Tokens   2 8 4 7 0 0 4 0 0 0 0 0 2 0 0 0
    Targets  . . . . . . 7 . . . . . 8 . . .

An example begins with pairs of a key and its value. Each key occurs again later, where its value is
asked for. The definition is that of the published generator (HazyResearch/zoology,
zoology/data/multiquery_ar.py); this one draws other numbers.
"""

import numpy as np
from numpy.random import Generator

from gmlp_flax.data.synthetic.recipe import IGNORED, Examples, Recipe, examples
from gmlp_flax.errors import ConfigError

# Rows that repeat an id are drawn again, unless too many do: if size^2 / ids is at most this, one
# row in seven has no repeats. Beyond it, permutations are drawn.
MOST_COLLISIONS = 4


def check(recipe: Recipe) -> None:
    """Raises ConfigError if the sizes do not fit together."""
    shortest = 4 * recipe.pairs
    if recipe.length % 2 or recipe.length < shortest:
        raise ConfigError(
            f"config.model.length is {recipe.length} and config.synthetic.pairs {recipe.pairs}: "
            "expected an even length of at least four tokens for each pair"
        )
    fewest = 2 * recipe.pairs + 2
    if recipe.vocab_size < fewest:
        raise ConfigError(
            f"config.model.vocab_size is {recipe.vocab_size}: {recipe.pairs} different keys need at "
            f"least {fewest}"
        )


def gap_shares(slots: int, power: float) -> np.ndarray:
    """The probability that a query is in each slot of two tokens after the pairs, float64
    [slots]: proportional to i^(power - 1) for the slots 1, 2, ..."""
    numbers = np.arange(1, slots + 1)
    weights = numbers ** (power - 1)
    return weights / weights.sum()


def generate(recipe: Recipe, rng: Generator, count: int, training: bool) -> Examples:
    """`count` examples. Training and held-out examples are alike, and so are those for models that
    see later tokens: no answer is in the text."""
    pairs = recipe.pairs
    shape = (count, recipe.length)
    first_value = recipe.vocab_size // 2
    keys = draw_distinct(rng, count, pairs, 1, first_value)
    values = draw_distinct(rng, count, pairs, first_value, recipe.vocab_size)
    if recipe.fill:
        tokens = rng.integers(recipe.vocab_size, size=shape)
    else:
        tokens = np.zeros(shape, np.int64)
    context = 2 * pairs  # tokens of all pairs
    tokens[:, 0:context:2] = keys
    tokens[:, 1:context:2] = values
    slots = (recipe.length - context) // 2
    shares = gap_shares(slots, recipe.power)
    slots_of_queries = draw_slots(rng, count, pairs, shares)
    queries = context + 2 * slots_of_queries  # positions
    targets = np.full(shape, IGNORED)
    np.put_along_axis(tokens, queries, keys, axis=1)
    np.put_along_axis(targets, queries, values, axis=1)
    return examples(tokens, targets)


def draw_distinct(rng: Generator, count: int, size: int, first: int, end: int) -> np.ndarray:
    """`size` different ids from `first` to before `end`, all orders equally likely: int [count,
    size]."""
    ids = end - first
    if size**2 > MOST_COLLISIONS * ids:
        offsets = _first_of_permutations(rng, count, size, ids)
        return first + offsets
    drawn = rng.integers(first, end, size=(count, size))
    repeated = has_repeats(drawn)
    while repeated.any():
        rows = repeated.sum()
        drawn[repeated] = rng.integers(first, end, size=(rows, size))
        repeated = has_repeats(drawn)
    return drawn


def _first_of_permutations(rng: Generator, count: int, size: int, ids: int) -> np.ndarray:
    """The first `size` entries of random permutations of 0 to `ids` - 1, int [count, size]."""
    in_order = np.arange(ids)
    unshuffled = np.broadcast_to(in_order, (count, ids))
    shuffled = rng.permuted(unshuffled, axis=1)
    return shuffled[:, :size]


def has_repeats(rows: np.ndarray) -> np.ndarray:
    """Whether a number occurs in a row more than once: bool [rows]."""
    in_order = np.sort(rows, axis=1)
    before = in_order[:, :-1]
    after = in_order[:, 1:]
    is_equal = before == after
    return is_equal.any(axis=1)


def draw_slots(rng: Generator, count: int, size: int, shares: np.ndarray) -> np.ndarray:
    """`size` different slots, one after the other, each with a probability proportional to its
    share among the slots that are left: int [count, size].

    The largest of log(share) + Gumbel noise, in order, are such a draw (Vieira 2014).
    """
    slots = len(shares)
    noise = rng.gumbel(size=(count, slots))
    scores = np.log(shares) + noise
    best_first = np.argsort(-scores, axis=1)
    return best_first[:, :size]
