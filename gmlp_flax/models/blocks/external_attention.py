"""External attention (arXiv 2105.02358): tokens attend to a small memory, the same for all
inputs."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.attention.spec import HeadsSpec
from gmlp_flax.models.blocks.base import PreNormBlock
from gmlp_flax.models.layers import DecodeCache, LayerRng, Linear
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.models.spec import AnyLengthSpec
from gmlp_flax.options import SIZE, option

TOKENS = "tokens"
MEMORY = "memory"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExternalAttentionSpec(HeadsSpec, AnyLengthSpec):
    """Options of external attention."""

    heads: int = option(
        1, "heads, each of d_model / heads channels; they share the memory", SIZE, architecture=True
    )
    memory: int = option(64, "entries of the memory (the paper's S)", SIZE, architecture=True)
    memory_softmax: str = option(
        TOKENS,
        "the softmax runs over the tokens, and weights are then divided by their sum (published), "
        "or over the memory",
        (TOKENS, MEMORY),
        architecture=True,
    )


class ExternalAttention(nnx.Module):
    """weights(x keys^T) values in each head, between two projections. The memory, `keys` and
    `values` [memory, d_model / heads], has no biases, and the weights are computed in its type.

    As published, the softmax runs over the tokens, and each token's weights are then divided by
    their sum (double normalization), so that a token's output depends on all tokens. With the
    softmax over the memory, it depends only on the token.
    """

    def __init__(self, spec: ExternalAttentionSpec, rngs: nnx.Rngs):
        d_model = spec.d_model
        init = nnx.initializers.glorot_uniform()
        d = d_model // spec.heads
        shape = (spec.memory, d)
        self.proj_in = Linear(spec, d_model, d_model, rngs)
        keys = init(rngs.params(), shape, spec.param_dtype)
        self.keys = parameter(keys)
        values = init(rngs.params(), shape, spec.param_dtype)
        self.values = parameter(values)
        self.out = Linear(spec, d_model, d_model, rngs, sharding=(None, FSDP))
        self.heads = spec.heads
        self.over_tokens = spec.memory_softmax == TOKENS

    def __call__(self, x: Array, padding_mask: Array | None = None) -> Array:
        """[batch, tokens, d_model] to the same. A softmax over tokens ignores padding;
        `padding_mask` as in `Block`."""
        keys = self.keys[...]
        values = self.values[...]
        precise_dtype = keys.dtype
        projected = self.proj_in(x)
        batch, tokens, channels = projected.shape
        d = channels // self.heads
        by_head = projected.reshape(batch, tokens, self.heads, d)
        queries = by_head.swapaxes(1, 2)  # [batch, heads, tokens, d]
        keys = keys.astype(x.dtype)
        # [batch, heads, tokens, memory]
        scores = jnp.einsum("bhnc,sc->bhns", queries, keys, preferred_element_type=precise_dtype)
        weights = self._weights(scores, padding_mask)
        weights = weights.astype(x.dtype)
        values = values.astype(x.dtype)
        recalled = jnp.einsum("bhns,sc->bhnc", weights, values)
        mixed = recalled.swapaxes(1, 2)  # [batch, tokens, heads, d]
        joined = mixed.reshape(x.shape)
        return self.out(joined)

    def _weights(self, scores: Array, padding_mask: Array | None) -> Array:
        """The softmax of scores [batch, heads, tokens, memory], of the same shape."""
        if not self.over_tokens:
            return jax.nn.softmax(scores, axis=-1)
        if padding_mask is not None:
            is_text = padding_mask[:, None, :, None]
            least = jnp.finfo(scores.dtype).min
            scores = jnp.where(is_text, scores, least)
        weights = jax.nn.softmax(scores, axis=-2)
        total = weights.sum(-1, keepdims=True)
        divisor = 1e-9 + total
        return weights / divisor


class ExternalAttentionBlock(PreNormBlock):
    """x + external(norm(x)), then x + mlp(norm(x)).

    The paper's module for images ends in a batch norm and a ReLU; here the block is a pre-norm
    block like the others.
    """

    Spec = ExternalAttentionSpec
    hides_padding = True

    def __init__(self, spec: ExternalAttentionSpec, rngs: nnx.Rngs):
        self.external = ExternalAttention(spec, rngs)
        super().__init__(spec, rngs)

    def mix(
        self, x: Array, rng: LayerRng, padding_mask: Array | None, cache: DecodeCache | None
    ) -> Array:
        """See `PreNormBlock`."""
        return self.external(x, padding_mask)
