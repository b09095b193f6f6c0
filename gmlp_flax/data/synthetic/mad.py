"""The six tasks of MAD, mechanistic architecture design (Poli et al., arXiv 2403.17844, section 3
and appendix B).

The definitions are those of the published generators (athms/mad-lab, mad/data/instances.py, with
its option `multi_query`, which its benchmark sets); these draw other numbers. A model that sees
later tokens reads masks in place of the answers, which is not in the paper.
"""

import dataclasses

import numpy as np
from numpy.random import Generator

from gmlp_flax.data.synthetic.recipe import (
    IGNORED,
    Examples,
    Recipe,
    Text,
    examples,
    halves,
    stacked,
)
from gmlp_flax.errors import ConfigError

MEMORY_SEED = 12345  # of the one map of keys to values that `memorization` asks for


def recall(recipe: Recipe, rng: Generator, count: int, training: bool) -> Examples:
    """In-context recall: pairs of a key and its value. A key may occur again, with the same value,
    which is then asked for; that of the last pair always repeats an earlier one."""
    without_noise = dataclasses.replace(recipe, noise=0.0, noise_tokens=0)
    return noisy_recall(without_noise, rng, count, training)


def noisy_recall(recipe: Recipe, rng: Generator, count: int, training: bool) -> Examples:
    """In-context recall with pairs of noise, of symbols that are neither key nor value."""
    generated = []
    for _ in range(count):
        text = _recall_text(recipe, rng)
        example = text.example(recipe, training)
        generated.append(example)
    return stacked(generated)


def _recall_text(recipe: Recipe, rng: Generator) -> Text:
    first_noise = recipe.vocab_size - recipe.noise_tokens
    symbols = halves(first_noise)
    pairs_before_probe = recipe.length // 2 - 1
    text = Text()
    value_of: dict[int, int] = {}
    never_noise = rng.integers(pairs_before_probe)
    for number in range(pairs_before_probe):
        if number != never_noise and rng.random() < recipe.noise:
            noise_pair = rng.integers(first_noise, recipe.vocab_size, size=2)
            text.write(noise_pair)
            continue
        drawn_key = rng.choice(symbols.keys)
        key = int(drawn_key)
        is_known = key in value_of
        if not is_known:
            drawn_value = rng.choice(symbols.values)
            value_of[key] = int(drawn_value)
        value = value_of[key]
        text.write_pair([key], [value], asked=is_known)
    known_keys = list(value_of)
    choice = rng.integers(len(known_keys))
    probe = known_keys[choice]
    probe_value = value_of[probe]
    text.write_pair([probe], [probe_value], asked=True)
    return text


def fuzzy_recall(recipe: Recipe, rng: Generator, count: int, training: bool) -> Examples:
    """In-context recall with keys and values of one to `motif` tokens, in training; held-out keys
    have `motif` tokens. Padding comes first."""
    pad = recipe.vocab_size - 1
    shortest_key = 1 if training else recipe.motif
    generated = []
    for _ in range(count):
        text = _fuzzy_text(recipe, rng, shortest_key)
        text.pad_left(recipe.length, pad)
        example = text.example(recipe, training)
        generated.append(example)
    return stacked(generated)


def _fuzzy_text(recipe: Recipe, rng: Generator, shortest_key: int) -> Text:
    symbols = halves(recipe.vocab_size - 1)
    longest = recipe.motif
    longest_pair = 2 * longest
    probe = _draw_motif(rng, symbols.keys, shortest_key, longest)
    probe_value = _draw_motif(rng, symbols.values, 1, longest)
    value_of = {probe: probe_value}
    probe_size = len(probe) + len(probe_value)
    before_probe = recipe.length - probe_size
    # early enough that the text always reaches it
    shown_by = before_probe - 2 * longest_pair
    probe_from = rng.integers(shown_by + 1)
    text = Text()
    shown: set[tuple[int, ...]] = set()
    while len(text) < before_probe - longest_pair:
        key = _draw_motif(rng, symbols.keys, shortest_key, longest)
        if len(text) >= probe_from and probe not in shown:
            key = probe
        new_value = _draw_motif(rng, symbols.values, 1, longest)
        value = value_of.setdefault(key, new_value)
        is_known = key in shown
        text.write_pair(key, value, asked=is_known)
        shown.add(key)
    text.write_pair(probe, probe_value, asked=True)
    return text


def _draw_motif(rng: Generator, ids: np.ndarray, least: int, most: int) -> tuple[int, ...]:
    """From `least` to `most` different ids."""
    size = rng.integers(least, most + 1)
    drawn = rng.choice(ids, size, replace=False)
    return tuple(drawn.tolist())


def selective_copying(recipe: Recipe, rng: Generator, count: int, training: bool) -> Examples:
    """Tokens among blanks, then a sign to copy, then as many blanks, where they are asked for in
    their order. The last token is always just before the sign."""
    copy_sign = recipe.vocab_size - 1
    blank = recipe.vocab_size - 2
    copied = recipe.copied
    blanks = recipe.length - 2 * copied - 1
    blanks_to_fill = np.full(copied, blank)
    generated = []
    for _ in range(count):
        content = rng.integers(blank, size=copied)
        before = rng.integers(copied, size=blanks)
        shown = np.insert(content, before, blank)
        tokens = np.concatenate([shown, [copy_sign], blanks_to_fill])
        targets = np.full(recipe.length, IGNORED)
        targets[-copied:] = content
        generated.append((tokens, targets))
    return stacked(generated)


def compression(recipe: Recipe, rng: Generator, count: int, training: bool) -> Examples:
    """Random tokens and a sign. A decoder sees only the state of the sign, and must reproduce all
    tokens."""
    sign = recipe.vocab_size - 1
    tokens = rng.integers(sign, size=(count, recipe.length))
    tokens[:, -1] = sign
    return examples(tokens, targets=tokens)


def memorization(recipe: Recipe, rng: Generator, count: int, training: bool) -> Examples:
    """Keys, each followed by a sign that asks for its value: the same one in all examples, held out
    or not."""
    sign = recipe.vocab_size - 1
    value_of = memory(recipe.vocab_size)
    pairs = recipe.length // 2
    shape = (count, recipe.length)
    keys = rng.integers(len(value_of), size=(count, pairs))
    tokens = np.full(shape, sign)
    tokens[:, 0::2] = keys
    targets = np.full(shape, IGNORED)
    targets[:, 1::2] = value_of[keys]
    return examples(tokens, targets)


def memory(vocab_size: int) -> np.ndarray:
    """The value of each key of `memorization`, int [keys]."""
    symbols = halves(vocab_size - 1)
    rng = np.random.default_rng(MEMORY_SEED)
    shuffled = rng.permutation(symbols.values)
    keys = len(symbols.keys)
    return shuffled[:keys]


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
            f"expected two keys and two values beside {recipe.noise_tokens} symbols of noise "
            "(config.synthetic.noise_tokens)",
        )


def check_fuzzy_recall(recipe: Recipe) -> None:
    """The same for keys of several tokens."""
    shortest = 6 * recipe.motif
    fewest = 2 * recipe.motif + 1
    reason = f"for config.synthetic.motif={recipe.motif}"
    if recipe.length < shortest:
        raise _misfit(recipe, f"expected a length of at least {shortest} {reason}")
    if recipe.vocab_size < fewest:
        raise _misfit(recipe, f"expected at least {fewest} symbols {reason}")


def check_selective_copying(recipe: Recipe) -> None:
    """Raises ConfigError if there is no blank among the tokens to copy, or one symbol alone."""
    shortest = 2 * recipe.copied + 2
    if recipe.length < shortest:
        raise _misfit(
            recipe,
            f"expected a length of at least {shortest} for config.synthetic.copied={recipe.copied}",
        )
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
