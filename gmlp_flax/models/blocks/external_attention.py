"""External attention (arXiv 2105.02358): tokens attend to a small memory, the same for all inputs."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.attention import HeadsSpec
from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import EVALUATION, LayerNorm, LayerRng, Linear, add_branch
from gmlp_flax.models.mlp import ChannelMLP, ChannelMLPSpec
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.models.spec import AnyLengthSpec
from gmlp_flax.options import SIZE, option

TOKENS, MEMORY = "tokens", "memory"


def memory_weights(scores: jax.Array, over: str, padding_mask: jax.Array | None = None) -> jax.Array:
    """The weights of tokens on entries of the memory.

    Args:
        scores: [batch, heads, tokens, entries].
        over: "tokens": the softmax runs over the tokens, then each token's weights are divided by their sum (the
            paper's double normalisation; 1e-9 is added to the sum). "memory": the softmax runs over the entries.
        padding_mask: bool [batch, tokens], False for padding, which a softmax over tokens ignores; None if there is
            none.

    Returns:
        The same shape and type.
    """
    if over == MEMORY:
        return jax.nn.softmax(scores, axis=-1)
    if padding_mask is not None:
        scores = jnp.where(padding_mask[:, None, :, None], scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores, axis=-2)
    return weights / (1e-9 + weights.sum(-1, keepdims=True))


def recall(
    x: jax.Array, keys: jax.Array, values: jax.Array, over: str, padding_mask: jax.Array | None = None
) -> jax.Array:
    """weights(x keys^T) values in each head. The weights are computed in the type of the memory.

    Args:
        x: [batch, heads, tokens, c].
        keys, values: the memory, each [entries, c].
        over, padding_mask: as in `memory_weights`.

    Returns:
        The shape and type of x.
    """
    scores = jnp.einsum("bhnc,sc->bhns", x, keys.astype(x.dtype), preferred_element_type=keys.dtype)
    weights = memory_weights(scores, over, padding_mask).astype(x.dtype)
    return jnp.einsum("bhns,sc->bhnc", weights, values.astype(x.dtype))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExternalAttentionSpec(HeadsSpec, ChannelMLPSpec, AnyLengthSpec):
    """Options of external attention."""

    heads: int = option(1, "heads, each of d_model / heads channels; they share the memory", SIZE, architecture=True)
    memory: int = option(64, "entries of the memory (the paper's S)", SIZE, architecture=True)
    memory_softmax: str = option(
        TOKENS,
        "the softmax runs over the tokens, and weights are then divided by their sum (as published), or over "
        "the memory",
        (TOKENS, MEMORY),
        architecture=True,
    )


class ExternalAttention(nnx.Module):
    """A projection, the memory (`keys` and `values` [memory, d_model / heads], without biases), and a projection.

    With the softmax over tokens, a token's output depends on all tokens, through the sums of the softmax; with the
    softmax over the memory, on its own input alone.
    """

    def __init__(self, spec: ExternalAttentionSpec, rngs: nnx.Rngs):
        init = nnx.initializers.glorot_uniform()
        self.proj_in = Linear(spec, spec.d_model, spec.d_model, rngs)
        self.keys, self.values = (
            parameter(init(rngs.params(), (spec.memory, spec.d_model // spec.heads), spec.param_dtype))
            for _ in range(2)
        )
        self.out = Linear(spec, spec.d_model, spec.d_model, rngs, sharding=(None, FSDP))
        self.heads, self.over = spec.heads, spec.memory_softmax

    def __call__(self, x: jax.Array, padding_mask: jax.Array | None = None) -> jax.Array:
        """[batch, tokens, d_model] to the same; `padding_mask` as in `memory_weights`."""
        heads = self.proj_in(x).reshape(*x.shape[:2], self.heads, -1).swapaxes(1, 2)
        recalled = recall(heads, self.keys[...], self.values[...], self.over, padding_mask)
        return self.out(recalled.swapaxes(1, 2).reshape(x.shape))


class ExternalAttentionBlock(Block):
    """x + external(norm(x)), then x + mlp(norm(x)).

    The paper's module for images ends in a batch norm and a ReLU; here the block is a pre-norm block like the others.
    """

    Spec = ExternalAttentionSpec

    def __init__(self, spec: ExternalAttentionSpec, rngs: nnx.Rngs):
        self.mixing_norm = LayerNorm(spec, spec.d_model)
        self.external = ExternalAttention(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(self, x: jax.Array, rng: LayerRng = EVALUATION, padding_mask: jax.Array | None = None) -> jax.Array:
        """See `Block`."""
        x = add_branch(x, self.external(self.mixing_norm(x), padding_mask), rng, 0)
        return add_branch(x, self.mlp(self.mlp_norm(x)), rng, 1)
