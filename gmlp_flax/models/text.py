"""Text models around an encoder: the masked language model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.layers import LayerNorm, activation, Linear
from gmlp_flax.models.positions import LearnedPositions
from gmlp_flax.models.spec import EncoderSpec


class MaskedLM(nnx.Module):
    """Token embedding, encoder, and logits through the same embedding table plus an output bias.

    No padding mask, and no position embedding unless the spec asks for absolute ones (paper, section 4). The
    published parameter counts leave no room for a second table of the vocabulary nor for BERT's transform layer; the
    latter is an option.

    `scale_embeddings` multiplies what enters the encoder by sqrt(d_model) (Vaswani et al. 2017, section 3.4). Blocks
    whose first branch mixes tokens at once, Transformer and Mixer, otherwise drown a token's own embedding, of standard
    deviation 0.02, in what they add of its neighbours. A fresh gMLP block mixes nothing and does better without.
    """

    def __init__(
        self, spec: EncoderSpec, vocab_size: int, rngs: nnx.Rngs, transform: bool = False, scale_embeddings: bool = False
    ):
        init = nnx.initializers.normal(0.02)  # BERT's
        self.embedding = nnx.Param(init(rngs.params(), (vocab_size, spec.d_model), spec.param_dtype))
        self.positions = LearnedPositions(spec, rngs) if spec.positions == "absolute" else None
        self.encoder = Encoder(spec, rngs)
        self.transform = Linear(spec, spec.d_model, spec.d_model, rngs) if transform else None
        self.transform_norm = LayerNorm(spec, spec.d_model) if transform else None
        self.bias = nnx.Param(jnp.zeros((vocab_size,), spec.param_dtype))
        self.scale = spec.d_model**0.5 if scale_embeddings else 1
        self.spec = spec

    def hidden(self, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Token ids [batch, tokens] to the last layer's normalised states [batch, tokens, d_model]."""
        x = jnp.take(self.embedding[...], tokens, axis=0, mode="clip").astype(self.spec.compute_dtype)
        x = x if self.positions is None else self.positions(x)
        return self.encoder(self.scale * x, key)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """States [..., d_model], best only those that need predicting, to float32 logits [..., vocab_size]."""
        if self.transform is not None:
            hidden = self.transform_norm(activation(self.spec.activation, self.transform(hidden)))
        table = self.embedding[...].astype(hidden.dtype)
        scores = jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=self.spec.precise_dtype)
        return scores + self.bias[...]

    def __call__(self, tokens: jax.Array, positions: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Logits at some positions of each sequence.

        Args:
            tokens: int [batch, tokens].
            positions: int [batch, predictions], where to predict.
            key: a random key for training, none for evaluation.

        Returns:
            float32 [batch, predictions, vocab_size].
        """
        hidden = self.hidden(tokens, key)
        return self.logits(jnp.take_along_axis(hidden, positions[..., None], axis=1, mode="clip"))
