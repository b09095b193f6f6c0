"""Residual sums with dropout and stochastic depth, whose random keys are those of single examples."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from gmlp_flax.models import sharding
from gmlp_flax.models.layers.norms import LayerNorm

Branch = Callable[[Array], Array]


def split_keys(keys: Array, count: int) -> Array:
    """[batch] keys, one per example, to `count` new keys per example, [count, batch]. The random
    numbers of an example depend on nothing but its own key, however a batch is spread over
    devices."""

    def split(key: Array) -> Array:
        return jax.random.split(key, count)

    split_each = jax.vmap(split, out_axes=1)
    return split_each(keys)


def fold_in(keys: Array, number: Array | int) -> Array:
    """[batch] random keys to new keys for this number, [batch]."""
    fold_in_each = jax.vmap(jax.random.fold_in, (0, None))
    return fold_in_each(keys, number)


def dropout(x: Array, rate: float, keys: Array | None) -> Array:
    """Zeroes elements of x [batch, ...] with probability `rate` and scales the others by 1 / (1 -
    rate). `keys` has a random key per example, [batch]; None for evaluation, which returns x."""
    if keys is None or rate == 0:
        return x
    keep_rate = 1 - rate
    shape_of_example = x.shape[1:]

    def draw(key: Array) -> Array:
        return jax.random.bernoulli(key, keep_rate, shape_of_example)

    draw_each = jax.vmap(draw)
    keep = draw_each(keys)  # bool [batch, ...]
    scaled = x / keep_rate
    return jnp.where(keep, scaled, 0)


def drop_path(branch: Array, survival: Array, keys: Array) -> Array:
    """Stochastic depth: zeroes the whole branch of an example with probability 1 - survival, and
    scales the others by 1 / survival, so that the expected value is the branch of evaluation.
    `branch` is [batch, tokens, d_model], `survival` float32 [], and `keys` [batch]."""

    def draw(key: Array) -> Array:
        return jax.random.bernoulli(key, survival)

    draw_each = jax.vmap(draw)
    keep = draw_each(keys)  # bool [batch]
    factors = keep / survival
    factors = factors.astype(branch.dtype)
    factors = factors[:, None, None]  # [batch, 1, 1]
    return branch * factors


@dataclasses.dataclass(frozen=True)
class LayerRng:
    """The random keys and rates of one layer in training; by default those of evaluation, in which
    nothing is random.

    Attributes:
        keys: a random key for each example, [batch]; None for evaluation.
        dropout: rate of dropout on residual branches.
        survival: probability that stochastic depth keeps a residual branch, float32 []; None to
            keep all.
    """

    keys: Array | None = None
    dropout: float = 0.0
    survival: Array | None = None

    @property
    def mixing_keys(self) -> Array | None:
        """Keys for dropout inside the block, such as on the weights of attention: [batch], or None
        for evaluation."""
        if self.keys is None:
            return None
        return fold_in(self.keys, 0)


EVALUATION = LayerRng()


def add_branch(
    x: Array, branch: Array, rng: LayerRng, number: int = 0, dropped: bool = True
) -> Array:
    """The residual stream x + branch, in training with dropout and stochastic depth on the branch.

    Args:
        x: [batch, tokens, d_model].
        branch: of the same shape.
        rng: the block's own.
        number: number of the branch within its block, from 0; each branch has its own random keys.
        dropped: whether dropout applies.

    Returns:
        [batch, tokens, d_model], in the wider of the two types.
    """
    if rng.keys is not None:
        # 0 is for dropout inside the block (`LayerRng.mixing_keys`)
        dropout_keys = fold_in(rng.keys, 1 + 2 * number)
        depth_keys = fold_in(rng.keys, 2 + 2 * number)
        if dropped:
            branch = dropout(branch, rng.dropout, dropout_keys)
        if rng.survival is not None:
            branch = drop_path(branch, rng.survival, depth_keys)
    total = x + branch
    return sharding.constrain(total, sharding.BATCH)


def add_normed(
    x: Array, norm: LayerNorm, branch: Branch, rng: LayerRng, number: int, dropped: bool = True
) -> Array:
    """x + branch(norm(x)) or, if the norm stands in the residual stream (`post`), norm(x +
    branch(x)); the other arguments are those of `add_branch`."""
    if norm.post:
        added = branch(x.astype(norm.compute_dtype))
        total = add_branch(x, added, rng, number, dropped)
        return norm(total)
    added = branch(norm(x))
    return add_branch(x, added, rng, number, dropped)
