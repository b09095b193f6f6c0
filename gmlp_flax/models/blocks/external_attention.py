"""External attention (arXiv 2105.02358): tokens attend to a small memory, the same for all
inputs."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.attention import HeadsSpec
from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import EVALUATION, ChannelMLP, LayerNorm, LayerRng, Linear, add_branch
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
        "the softmax runs over the tokens, and weights are then divided by their sum (published), or over the memory",
        (TOKENS, MEMORY),
        architecture=True,
    )


class ExternalAttention(nnx.Module):
    """weights(x keys^T) values in each head, between two projections. The memory, `keys` and
    `values` [memory, d_model / heads], has no biases, and the weights are computed in its type.

    As published, the softmax runs over the tokens, and each token's weights are then divided by
    their sum (double
    normalisation): a token's output depends on all tokens. With the softmax over the memory it
    depends on the token alone.
    """

    def __init__(self, spec: ExternalAttentionSpec, rngs: nnx.Rngs):
        init = nnx.initializers.glorot_uniform()
        shape = spec.memory, spec.d_model // spec.heads
        self.proj_in = Linear(spec, spec.d_model, spec.d_model, rngs)
        self.keys = parameter(init(rngs.params(), shape, spec.param_dtype))
        self.values = parameter(init(rngs.params(), shape, spec.param_dtype))
        self.out = Linear(spec, spec.d_model, spec.d_model, rngs, sharding=(None, FSDP))
        self.heads = spec.heads
        self.over = spec.memory_softmax

    def __call__(self, x: jax.Array, padding_mask: jax.Array | None = None) -> jax.Array:
        """[batch, tokens, d_model] to the same. A softmax over tokens ignores padding;
        `padding_mask` as in `Block`."""
        keys = self.keys[...]
        values = self.values[...]
        batch, tokens, _ = x.shape
        projected = self.proj_in(x)
        heads = projected.reshape(batch, tokens, self.heads, -1).swapaxes(1, 2)
        scores = jnp.einsum(
            "bhnc,sc->bhns", heads, keys.astype(x.dtype), preferred_element_type=keys.dtype
        )
        if self.over == TOKENS:
            if padding_mask is not None:
                is_text = padding_mask[:, None, :, None]
                scores = jnp.where(is_text, scores, jnp.finfo(scores.dtype).min)
            weights = jax.nn.softmax(scores, axis=-2)
            weights = weights / (1e-9 + weights.sum(-1, keepdims=True))
        else:
            weights = jax.nn.softmax(scores, axis=-1)
        recalled = jnp.einsum("bhns,sc->bhnc", weights.astype(x.dtype), values.astype(x.dtype))
        return self.out(recalled.swapaxes(1, 2).reshape(x.shape))


class ExternalAttentionBlock(Block):
    """x + external(norm(x)), then x + mlp(norm(x)).

    The paper's module for images ends in a batch norm and a ReLU; here the block is a pre-norm
    block like the others.
    """

    Spec = ExternalAttentionSpec
    hides_padding = True

    def __init__(self, spec: ExternalAttentionSpec, rngs: nnx.Rngs):
        self.mixing_norm = LayerNorm(spec, spec.d_model)
        self.external = ExternalAttention(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(
        self, x: jax.Array, rng: LayerRng = EVALUATION, padding_mask: jax.Array | None = None
    ) -> jax.Array:
        """See `Block`."""
        x = add_branch(x, self.external(self.mixing_norm(x), padding_mask), rng, 0)
        return add_branch(x, self.mlp(self.mlp_norm(x)), rng, 1)
