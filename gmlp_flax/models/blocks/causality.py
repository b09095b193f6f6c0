"""A numerical test of whether a block that is said to be causal looks ahead.

A causal language model that sees the tokens it predicts scores far too well, and nothing else
shows it.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

MOST_TOKENS = 64
NOISE = 0.1  # on the initial parameters, of which some are zero and would hide what they mix
# A larger change of earlier outputs, relative to that of later ones, is not a rounding error.
TOLERANCE = 1e-3


def looks_ahead(spec: Any) -> bool:
    """Whether an output of any layer of a causal model depends on a later token.

    Later tokens of a random text are exchanged at a few positions, and the outputs before them are
    compared. The layers have float32 and random parameters near the initial ones.

    Args:
        spec: of the blocks of the model, with `causal`.
    """
    previous = None
    for layer_spec in spec.block.layer_specs(short(spec)):
        if layer_spec != previous and _layer_looks_ahead(layer_spec):
            return True
        previous = layer_spec
    return False


def short(spec: Any) -> Any:
    """The spec for fewer tokens in float32, or only in float32 if the block refuses such a
    length."""
    exact = dataclasses.replace(spec, dtype="float32")
    if spec.length <= MOST_TOKENS:
        return exact
    try:
        return dataclasses.replace(exact, length=MOST_TOKENS)
    except ValueError:
        return exact


def _layer_looks_ahead(spec: Any) -> bool:
    block = _randomized(spec)
    call = nnx.jit(lambda block, x: block(x))
    shape = (1, spec.length, spec.d_model)
    key = jax.random.key(1)
    text_key, other_key = jax.random.split(key)
    text = jax.random.normal(text_key, shape)
    other = jax.random.normal(other_key, shape)
    outputs = call(block, text)
    for position in _positions(spec.length):
        positions = jnp.arange(spec.length)[:, None]
        is_later = positions >= position
        other_text = jnp.where(is_later, other, text)
        changed = call(block, other_text)
        changes = jnp.abs(changed - outputs)
        change = changes[0]
        earlier = change[:position].max()
        later = change[position:].max()
        most_noise = TOLERANCE * later
        if earlier > most_noise:
            return True
    return False


def _positions(length: int) -> Iterator[int]:
    """Positions at which later tokens begin. An odd one in the middle lies inside the chunks of a
    block that works in chunks."""
    middle = length // 2
    odd = middle + 1 - middle % 2
    for position in sorted({1, odd, length - 1}):
        if 0 < position < length:
            yield position


def _randomized(spec: Any) -> nnx.Module:
    """A layer with noise on its initial parameters."""
    block = spec.block(spec, nnx.Rngs(0))
    random = nnx.Rngs(2)

    def with_noise(leaf: Array) -> Array:
        noise = jax.random.normal(random(), leaf.shape, leaf.dtype)
        return leaf + NOISE * noise

    params = nnx.state(block, nnx.Param)
    noisy = jax.tree.map(with_noise, params)
    nnx.update(block, noisy)
    return block
