"""The six tasks of MAD, mechanistic architecture design (Poli et al., arXiv 2403.17844, section 3
and appendix B).

The definitions are those of the published generators (athms/mad-lab, mad/data/instances.py, with
its option `multi_query`, which its benchmark sets); these draw other numbers. A model that sees
later tokens reads masks in place of the answers, which is not in the paper.
"""

import numpy as np

from gmlp_flax.data.synthetic.recipe import (
    IGNORED,
    Examples,
    Recipe,
    Text,
    halves,
    stacked,
)
from gmlp_flax.errors import ConfigError

MEMORY_SEED = 12345  # of the one map of keys to values that `memorization` asks for


def recall(recipe: Recipe, rng: np.random.Generator, count: int, training: bool) -> Examples:
    """In-context recall: pairs of a key and its value. A key may come again, with the same value,
    which is then asked for; the last pair always does."""
    return _recall(recipe, rng, count, training, noise=0.0, noise_tokens=0)


def noisy_recall(recipe: Recipe, rng: np.random.Generator, count: int, training: bool) -> Examples:
    """In-context recall with pairs of noise, of symbols that are neither key nor value."""
    return _recall(
        recipe, rng, count, training, noise=recipe.noise, noise_tokens=recipe.noise_tokens
    )


def _recall(
    recipe: Recipe,
    rng: np.random.Generator,
    count: int,
    training: bool,
    *,
    noise: float,
    noise_tokens: int,
) -> Examples:
    symbols = halves(recipe.vocab_size - noise_tokens)
    first_noise = recipe.vocab_size - noise_tokens
    examples = []
    for _ in range(count):
        text = Text()
        value_of: dict[int, int] = {}
        pairs = recipe.length // 2
        never_noise = rng.integers(pairs - 1)
        for number in range(pairs - 1):
            if number != never_noise and rng.random() < noise:
                text.write(rng.integers(first_noise, recipe.vocab_size, size=2))
                continue
            key = int(rng.choice(symbols.keys))
            is_known = key in value_of
            if not is_known:
                value_of[key] = int(rng.choice(symbols.values))
            text.write([key])
            text.write([value_of[key]], asked=is_known)
        probe = list(value_of)[rng.integers(len(value_of))]
        text.write([probe])
        text.write([value_of[probe]], asked=True)
        examples.append(text.example(recipe, training))
    return stacked(examples)


def fuzzy_recall(recipe: Recipe, rng: np.random.Generator, count: int, training: bool) -> Examples:
    """In-context recall with keys and values of one to `motif` tokens, in training; held-out keys
    have `motif` tokens. Padding stands in front."""
    pad = recipe.vocab_size - 1
    symbols = halves(recipe.vocab_size - 1)

    def motif(ids: np.ndarray, least: int) -> tuple[int, ...]:
        """Different ids, as many as a random size says."""
        size = rng.integers(least, recipe.motif + 1)
        return tuple(rng.choice(ids, size, replace=False).tolist())

    shortest_key = 1 if training else recipe.motif
    examples = []
    for _ in range(count):
        probe = motif(symbols.keys, shortest_key)
        value_of = {probe: motif(symbols.values, 1)}
        probe_size = len(probe) + len(value_of[probe])
        # early enough that the text always reaches it
        probe_from = rng.integers(recipe.length - probe_size - 4 * recipe.motif + 1)
        text = Text()
        shown: set[tuple[int, ...]] = set()
        while len(text) < recipe.length - probe_size - 2 * recipe.motif:
            key = motif(symbols.keys, shortest_key)
            if len(text) >= probe_from and probe not in shown:
                key = probe
            value_of.setdefault(key, motif(symbols.values, 1))
            text.write(key)
            text.write(value_of[key], asked=key in shown)
            shown.add(key)
        text.write(probe)
        text.write(value_of[probe], asked=True)
        text.pad_left(recipe.length, pad)
        examples.append(text.example(recipe, training))
    return stacked(examples)


def selective_copying(
    recipe: Recipe, rng: np.random.Generator, count: int, training: bool
) -> Examples:
    """Tokens among blanks, then a sign to copy, then as many blanks, where they are asked for in
    their order. The last token always stands just before the sign."""
    copy_sign = recipe.vocab_size - 1
    blank = recipe.vocab_size - 2
    copied = recipe.copied
    blanks = recipe.length - 2 * copied - 1
    examples = []
    for _ in range(count):
        content = rng.integers(recipe.vocab_size - 2, size=copied)
        before = rng.integers(copied, size=blanks)
        shown = np.insert(content, before, blank)
        tokens = np.concatenate([shown, [copy_sign], np.full(copied, blank)])
        targets = np.full(recipe.length, IGNORED)
        targets[-copied:] = content
        examples.append((tokens.astype(np.int32), targets.astype(np.int32)))
    return stacked(examples)


def compression(recipe: Recipe, rng: np.random.Generator, count: int, training: bool) -> Examples:
    """Random tokens and a sign, whose state alone a decoder gets: it has to give back all tokens."""
    sign = recipe.vocab_size - 1
    tokens = rng.integers(sign, size=(count, recipe.length))
    tokens[:, -1] = sign
    return Examples(tokens.astype(np.int32), tokens.astype(np.int32))


def memorization(recipe: Recipe, rng: np.random.Generator, count: int, training: bool) -> Examples:
    """Keys, each followed by a sign that asks for its value: the same one in all examples, held out
    or not."""
    sign = recipe.vocab_size - 1
    value_of = memory(recipe.vocab_size)
    pairs = recipe.length // 2
    keys = rng.integers(len(value_of), size=(count, pairs))
    shape = (count, recipe.length)
    tokens = np.full(shape, sign)
    tokens[:, 0::2] = keys
    targets = np.full(shape, IGNORED)
    targets[:, 1::2] = value_of[keys]
    return Examples(tokens.astype(np.int32), targets.astype(np.int32))


def memory(vocab_size: int) -> np.ndarray:
    """The value of each key of `memorization`, int [keys]."""
    symbols = halves(vocab_size - 1)
    shuffled = np.random.default_rng(MEMORY_SEED).permutation(symbols.values)
    return shuffled[: len(symbols.keys)]


def check_recall(recipe: Recipe) -> None:
    """Raises ConfigError if the sizes of a recall do not fit together."""
    if recipe.length % 2 or recipe.length < 4:
        raise _misfit(recipe, "expected an even length of at least 4")
    if recipe.vocab_size < 4:
        raise _misfit(recipe, "expected at least two keys and two values")


def check_noisy_recall(recipe: Recipe) -> None:
    """The same with noise."""
    check_recall(recipe)
    if recipe.noise_tokens < 1 or recipe.vocab_size < recipe.noise_tokens + 4:
        raise _misfit(
            recipe,
            f"expected two keys and two values beside {recipe.noise_tokens} symbols of noise",
        )


def check_fuzzy_recall(recipe: Recipe) -> None:
    """The same for keys of several tokens."""
    shortest = 6 * recipe.motif
    fewest = 2 * recipe.motif + 1
    if recipe.length < shortest:
        raise _misfit(recipe, f"expected a length of at least {shortest}")
    if recipe.vocab_size < fewest:
        raise _misfit(recipe, f"expected at least {fewest} symbols")


def check_selective_copying(recipe: Recipe) -> None:
    """Raises ConfigError if there is no blank among the tokens to copy, or one symbol alone."""
    shortest = 2 * recipe.copied + 2
    if recipe.length < shortest:
        raise _misfit(recipe, f"expected a length of at least {shortest}")
    if recipe.vocab_size < 4:
        raise _misfit(recipe, "expected at least two symbols beside the blank and the sign")


def check_compression(recipe: Recipe) -> None:
    """Raises ConfigError if there is nothing to compress."""
    if recipe.length < 2 or recipe.vocab_size < 3:
        raise _misfit(recipe, "expected two tokens or more, of two symbols or more beside the sign")


def check_memorization(recipe: Recipe) -> None:
    """Raises ConfigError if there is one key alone."""
    if recipe.length % 2 or recipe.vocab_size < 5:
        raise _misfit(recipe, "expected an even length, and at least two keys and two values")


def _misfit(recipe: Recipe, expected: str) -> ConfigError:
    return ConfigError(
        f"config.model.length is {recipe.length} and config.model.vocab_size {recipe.vocab_size}: "
        f"{expected}"
    )
