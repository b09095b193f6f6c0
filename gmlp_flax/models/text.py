"""Text models around an encoder: masked and causal language models, and the three that are finetuned from them."""

from __future__ import annotations

import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models import sharding
from gmlp_flax.models.encoder import Encoder, Kept
from gmlp_flax.models.layers import LayerNorm, Linear, activation, dropout, split_keys
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.positions import LearnedPositions, LearnedSegments
from gmlp_flax.models.resize import Positions
from gmlp_flax.models.sharding import FSDP, TENSOR
from gmlp_flax.models.spec import BlockSpec

_BERT = nnx.initializers.normal(0.02)  # of embeddings and heads


class TextModel(nnx.Module):
    """Token embedding and encoder, which all text models share by the names of their parameters.

    There is no position embedding unless the spec asks for absolute ones (paper, section 4).

    `scale_embeddings` multiplies what enters the encoder by sqrt(d_model) (Vaswani et al. 2017, section 3.4). Blocks
    whose first branch mixes tokens at once, Transformer and Mixer, otherwise add so much of the neighbours that a token's
    own embedding, of standard deviation 0.02, is lost. A fresh gMLP block mixes nothing and does better without.
    `embedding_norm` puts BERT's layer norm after the embeddings in place of that factor, and `embedding_projection`
    FNet's linear layer after both. `token_types` is the number of kinds of text that have a learned vector from
    pretraining on (FNet: 4); with 0, a model that reads `segments` has two, which start at 0.
    """

    def __init__(
        self,
        spec: BlockSpec,
        vocab_size: int,
        rngs: nnx.Rngs,
        *,
        scale_embeddings: bool = False,
        embedding_norm: bool = False,
        embedding_projection: bool = False,
        token_types: int = 0,
        segments: bool = False,
    ):
        table = _BERT(rngs.params(), (vocab_size, spec.d_model), spec.param_dtype)
        self.embedding = parameter(table, sharding=(TENSOR, FSDP))
        self.positions = LearnedPositions(spec, rngs, Positions()) if spec.positions == "absolute" else None
        of_pairs = LearnedSegments(spec) if segments else None
        self.segments = LearnedSegments(spec, token_types, rngs) if token_types else of_pairs
        self.embedding_norm = LayerNorm(spec, spec.d_model) if embedding_norm else None
        self.embedding_projection = Linear(spec, spec.d_model, spec.d_model, rngs) if embedding_projection else None
        self.encoder = Encoder(spec, rngs)
        self.scale = spec.d_model**0.5 if scale_embeddings else 1
        self.spec = spec

    def hidden(
        self,
        tokens: jax.Array,
        key: jax.Array | None = None,
        segments: jax.Array | None = None,
        padding_mask: jax.Array | None = None,
    ) -> jax.Array:
        """The last layer's normalised states.

        Args:
            tokens: int [batch, tokens].
            key: a random key per example, [batch], for training; None for evaluation.
            segments: int [batch, tokens], the kind of text of each token (in a pair 0 or 1), for a model that has them.
            padding_mask: bool [batch, tokens], False for padding, which attention ignores; None if there is none.

        Returns:
            [batch, tokens, d_model] in the compute type.

        Raises:
            ValueError: the model has segments and none are given, or there are more tokens than it takes.
        """
        chex.assert_rank(tokens, 2)
        chex.assert_equal_shape([tokens, *(given for given in (segments, padding_mask) if given is not None)])
        return self.encoder(self.embedded(tokens, segments), key, padding_mask)

    def embedded(self, tokens: jax.Array, segments: jax.Array | None, first: jax.Array | int = 0) -> jax.Array:
        """What enters the encoder, [batch, tokens, d_model]: arguments as in `hidden`, `first` the first position."""
        table = sharding.constrain(
            self.embedding[...], None, None
        )  # whole: cut, the compiler would move activations instead
        x = jnp.take(table, tokens, axis=0, mode="clip").astype(self.spec.compute_dtype)
        x = x if self.positions is None else self.positions(x, first)
        if self.segments is not None:
            if segments is None:
                raise ValueError("this model has segments: give `segments`, int [batch, tokens]")
            x = self.segments(x, segments)
        x = self.scale * x if self.embedding_norm is None else self.embedding_norm(x)
        return x if self.embedding_projection is None else self.embedding_projection(x)


class LanguageModel(TextModel):
    """Logits through the embedding table itself plus an output bias.

    The published parameter counts leave no room for a second table of the vocabulary nor for BERT's transform layer;
    the latter is an option. `embedding` are the options of `TextModel`. All tokens are in the first segment, if there
    are any.
    """

    def __init__(self, spec: BlockSpec, vocab_size: int, rngs: nnx.Rngs, transform: bool = False, **embedding: Any):
        super().__init__(spec, vocab_size, rngs, **embedding)
        self.transform = Linear(spec, spec.d_model, spec.d_model, rngs) if transform else None
        self.transform_norm = LayerNorm(spec, spec.d_model) if transform else None
        self.bias = parameter(jnp.zeros((vocab_size,), spec.param_dtype), sharding=(TENSOR,), decayed=False)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Hidden states [..., d_model] to float32 logits [..., vocab_size].

        Pass only the states that need a prediction: the vocabulary is large.
        """
        if self.transform is not None and self.transform_norm is not None:
            hidden = self.transform_norm(activation(self.spec.activation, self.transform(hidden)))
        table = self.embedding[...].astype(hidden.dtype)
        scores = jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=self.spec.precise_dtype)
        return scores + self.bias[...]

    def _segments(self, tokens: jax.Array) -> jax.Array | None:
        return None if self.segments is None else jnp.zeros_like(tokens)


class MaskedLM(LanguageModel):
    """A language model that predicts tokens by those on both sides of them."""

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        key: jax.Array | None = None,
        padding_mask: jax.Array | None = None,
    ) -> jax.Array:
        """Logits at some positions of each sequence.

        Args:
            tokens: as in `hidden`; so are `key` and `padding_mask`.
            positions: int [batch, predictions], where to predict.

        Returns:
            float32 [batch, predictions, vocab_size].
        """
        hidden = self.hidden(tokens, key, self._segments(tokens), padding_mask)
        return self.logits(jnp.take_along_axis(hidden, positions[..., None], axis=1, mode="clip"))


class CausalLM(LanguageModel):
    """A language model that predicts each token by those before it; its blocks are causal.

    Padding needs no mask: it follows a text, where nothing that is predicted sees it.
    """

    def __call__(self, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """float32 logits [batch, tokens, vocab_size] of the token after each; arguments as in `hidden`."""
        return self.logits(self.hidden(tokens, key, self._segments(tokens)))

    def extend(
        self, tokens: jax.Array, kept: list[Kept] | None, first: jax.Array, last: jax.Array
    ) -> tuple[jax.Array, list[Kept]]:
        """Reads further tokens of a text.

        Args:
            tokens: int [batch, tokens], those at the places [first, first + tokens), which must lie within n. Padding may
                follow the text: the next call writes over it.
            kept: what the call before returned; None at the beginning of a text.
            first: int, how many tokens were read before.
            last: int, which of these tokens is the text's last.

        Returns:
            float32 logits [batch, vocab_size] of the token after the last one, and what to keep.
        """
        x = self.embedded(tokens, self._segments(tokens), first)
        hidden, kept = self.encoder.extend(x, kept, first)
        return self.logits(jax.lax.dynamic_index_in_dim(hidden, last, axis=1, keepdims=False)), kept


class SequenceClassifier(TextModel):
    """Classes of a text, or of a pair of texts, read off the last states.

    `pool="cls"` reads the [CLS] token's state (paper, section 4.4), `pool="mean"` the mean of the tokens that are not padding:
    short pretraining leaves a gMLP with filters that reach a few tokens, and [CLS] far from most of the text.
    `pooler` puts BERT's layer of its own and a tanh before the head, which the paper does not mention. `embedding` are
    the options of `TextModel`.
    """

    def __init__(
        self,
        spec: BlockSpec,
        vocab_size: int,
        classes: int,
        rngs: nnx.Rngs,
        *,
        pool: str = "cls",
        pooler: bool = False,
        **embedding: Any,
    ):
        super().__init__(spec, vocab_size, rngs, **embedding, segments=True)
        self.pool = pool
        self.pooler = Linear(spec, spec.d_model, spec.d_model, rngs, init=_BERT) if pooler else None
        self.head = Linear(spec, spec.d_model, classes, rngs, init=_BERT)

    def __call__(
        self,
        tokens: jax.Array,
        segments: jax.Array,
        padding_mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """float32 logits [batch, classes]; arguments as in `hidden`, [CLS] first. The pooled state has dropout, too."""
        encoder_key, head_key = (None, None) if key is None else split_keys(key, 2)
        states = self.hidden(tokens, encoder_key, segments, padding_mask).astype(self.spec.precise_dtype)
        pooled = pooled_states(states, self.pool, padding_mask)
        if self.pooler is not None:
            pooled = jnp.tanh(self.pooler(pooled))
        return self.head(dropout(pooled, self.spec.dropout, head_key))


class PairClassifier(TextModel):
    """Classes of a pair of texts that one encoder reads apart: neither sees the other before the head.

    From the two pooled states u and v, `pool` as in `SequenceClassifier`, the head makes [u, v, u * v, u - v], then two
    layers with a ReLU, of 4 d_model and 2 d_model, and the logits: Long Range Arena's for its task Retrieval
    (google-research/long-range-arena, models/layers/common_layers.py, interaction NLI). `embedding` are the options of
    `TextModel`.
    """

    def __init__(
        self, spec: BlockSpec, vocab_size: int, classes: int, rngs: nnx.Rngs, *, pool: str = "cls", **embedding: Any
    ):
        super().__init__(spec, vocab_size, rngs, **embedding)
        self.pool = pool
        sizes = 4 * spec.d_model, 4 * spec.d_model, 2 * spec.d_model, classes
        self.head = PairHead([Linear(spec, *each, rngs) for each in itertools.pairwise(sizes)])

    def __call__(
        self,
        tokens: jax.Array,
        segments: jax.Array,
        padding_mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """float32 logits [batch, classes] of tokens [batch, 2, tokens]; `segments` and `padding_mask` have this shape, too."""
        chex.assert_shape(tokens, (None, 2, None))

        def flat(given: jax.Array) -> jax.Array:
            return given.reshape(-1, *given.shape[2:])

        encoder_key, head_key = None, None
        if key is not None:
            *both, head_key = split_keys(key, 3)
            encoder_key = jnp.stack(both, axis=1).reshape(-1)
        types = None if self.segments is None else flat(segments)
        states = self.hidden(flat(tokens), encoder_key, types, None if padding_mask is None else flat(padding_mask))
        pooled = pooled_states(
            states.astype(self.spec.precise_dtype), self.pool, None if padding_mask is None else flat(padding_mask)
        )
        first, second = jnp.moveaxis(pooled.reshape(-1, 2, self.spec.d_model), 1, 0)
        compared = jnp.concatenate([first, second, first * second, first - second], axis=-1)
        return self.head(dropout(compared, self.spec.dropout, head_key))


class PairHead(nnx.Module):
    """Linear layers with a ReLU between."""

    def __init__(self, layers: list[Linear]):
        self.first, self.second, self.last = layers

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, d_in] to [batch, d_out]."""
        return self.last(jax.nn.relu(self.second(jax.nn.relu(self.first(x)))))


def pooled_states(states: jax.Array, pool: str, padding_mask: jax.Array | None) -> jax.Array:
    """The state of the first token of each text, or the mean of those that are not padding: [batch, tokens, d_model] to
    [batch, d_model]."""
    return (
        states[:, 0]
        if pool == "cls"
        else states.mean(axis=1, where=None if padding_mask is None else padding_mask[..., None])
    )


class SpanPredictor(TextModel):
    """Where an answer starts and where it ends: two scores for each token (BERT, for SQuAD).

    `embedding` are the options of `TextModel`.
    """

    def __init__(self, spec: BlockSpec, vocab_size: int, rngs: nnx.Rngs, **embedding: Any):
        super().__init__(spec, vocab_size, rngs, **embedding, segments=True)
        self.spans = Linear(spec, spec.d_model, 2, rngs, init=_BERT)

    def __call__(
        self,
        tokens: jax.Array,
        segments: jax.Array,
        padding_mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """float32 scores [batch, tokens, 2], of starts and of ends; arguments as in `hidden`."""
        return self.spans(self.hidden(tokens, key, segments, padding_mask).astype(self.spec.precise_dtype))
