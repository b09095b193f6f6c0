"""Text models around an encoder: masked and causal language models, and three models that are
finetuned from them."""

from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models import sharding
from gmlp_flax.models.encoder import Encoder, pooled_states
from gmlp_flax.models.layers import (
    CacheArrays,
    LayerNorm,
    LearnedPositions,
    LearnedSegments,
    Linear,
    activation,
    dropout,
    split_keys,
)
from gmlp_flax.models.parameters import POSITIONS, parameter
from gmlp_flax.models.sharding import FSDP, TENSOR
from gmlp_flax.models.spec import BlockSpec

_BERT = nnx.initializers.normal(0.02)  # of embeddings and heads


def _table(spec: BlockSpec, vocab_size: int, rngs: nnx.Rngs) -> nnx.Param:
    """A row per token, [vocab_size, d_model]."""
    shape = (vocab_size, spec.d_model)
    table = _BERT(rngs.params(), shape, spec.param_dtype)
    return parameter(table, sharding=(TENSOR, FSDP))


class TextModel(nnx.Module):
    """Token embedding and encoder, under the same parameter names in all text models. There is no
    position embedding unless the spec has `positions="absolute"` (paper, section 4).

    Args:
        scale_embeddings: multiply embeddings by sqrt(d_model) (Vaswani et al. 2017, section 3.4).
            Without it, blocks that mix tokens from the start (`Block.mixes_at_start`) add so much
            of other tokens that a token's embedding, of standard deviation 0.02, is lost. A fresh
            gMLP block mixes nothing and does better without.
        embedding_norm: BERT's layer norm after the embeddings, in place of that factor.
        embedding_projection: FNet's linear layer after both.
        token_types: number of segments whose vectors are pretrained (FNet: 4).
        segments: whether a model with 0 `token_types` has vectors for two segments, which start at
            0.
        pooler: BERT's linear layer and tanh before a classifier's head; language models keep it for
            classifiers.
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
        pooler: bool = False,
    ):
        d_model = spec.d_model
        self.embedding = _table(spec, vocab_size, rngs)
        if spec.positions == "absolute":
            self.positions = LearnedPositions(spec, rngs, POSITIONS)
        else:
            self.positions = None
        if token_types:
            self.segments = LearnedSegments(spec, token_types, rngs)
        elif segments:
            self.segments = LearnedSegments(spec)
        else:
            self.segments = None
        self.embedding_norm = LayerNorm(spec, d_model) if embedding_norm else None
        if embedding_projection:
            self.embedding_projection = Linear(spec, d_model, d_model, rngs)
        else:
            self.embedding_projection = None
        self.encoder = Encoder(spec, rngs)
        self.pooler = Linear(spec, d_model, d_model, rngs, init=_BERT) if pooler else None
        self.scale = spec.d_model**0.5 if scale_embeddings else 1
        self.spec = spec

    def hidden(
        self,
        tokens: Array,
        key: Array | None = None,
        segments: Array | None = None,
        padding_mask: Array | None = None,
    ) -> Array:
        """The states of the last layer, after the final norm.

        Args:
            tokens: int [batch, tokens].
            key: a random key per example, [batch], for training; None for evaluation.
            segments: int [batch, tokens], the segment of each token, in a pair 0 or 1; None if all
                are in the first.
            padding_mask: bool [batch, tokens], False for padding, which attention ignores; or the
                document of each token, see `Block`; None if there is none.

        Returns:
            [batch, tokens, d_model] in the compute type.
        """
        chex.assert_rank(tokens, 2)
        by_token = [array for array in (tokens, segments, padding_mask) if array is not None]
        chex.assert_equal_shape(by_token)
        x = self.embed(tokens, segments)
        return self.encoder(x, key, padding_mask)

    def states(
        self,
        tokens: Array,
        layers: Sequence[int],
        segments: Array | None = None,
        padding_mask: Array | None = None,
    ) -> list[Array]:
        """The states after some layers, each [batch, tokens, d_model]: see `Encoder.states`. The
        other arguments are those of `hidden`."""
        x = self.embed(tokens, segments)
        return self.encoder.states(x, layers, padding_mask)

    def embed(self, tokens: Array, segments: Array | None = None, first: Array | int = 0) -> Array:
        """The input of the encoder, [batch, tokens, d_model]. Arguments as in `hidden`; `first` is the
        position of the first token."""
        # Not sharded here: otherwise the compiler moves activations instead of the table.
        table = self.embedding[...]
        table = sharding.constrain(table, None, None)
        vectors = jnp.take(table, tokens, axis=0, mode="clip")  # [batch, tokens, d_model]
        x = vectors.astype(self.spec.compute_dtype)
        if self.positions is not None:
            x = self.positions(x, first)
        if self.segments is not None:
            if segments is None:
                segments = jnp.zeros_like(tokens)
            x = self.segments(x, segments)
        x = self.scale * x if self.embedding_norm is None else self.embedding_norm(x)
        if self.embedding_projection is not None:
            x = self.embedding_projection(x)
        return x


class LanguageModel(TextModel):
    """Logits from the embedding table, transposed, and an output bias.

    The paper's parameter counts include neither BERT's transform layer (`transform`) nor a second
    table, which a model without `tie_embeddings` has. `embedding` are the options of `TextModel`.
    """

    def __init__(
        self,
        spec: BlockSpec,
        vocab_size: int,
        rngs: nnx.Rngs,
        *,
        transform: bool = False,
        tie_embeddings: bool = True,
        **embedding: Any,
    ):
        super().__init__(spec, vocab_size, rngs, **embedding)
        d_model = spec.d_model
        if transform:
            self.transform = Linear(spec, d_model, d_model, rngs, bias=spec.biases)
        else:
            self.transform = None
        self.transform_norm = LayerNorm(spec, d_model) if transform else None
        self.output_embedding = None if tie_embeddings else _table(spec, vocab_size, rngs)
        bias = jnp.zeros((vocab_size,), spec.param_dtype)
        self.bias = parameter(bias, sharding=(TENSOR,), decayed=False)

    def logits(self, hidden: Array) -> Array:
        """Hidden states [..., d_model], only of tokens to predict, to float32 logits [...,
        vocab_size]."""
        if self.transform is not None and self.transform_norm is not None:
            hidden = self.transform(hidden)
            hidden = activation(self.spec.activation, hidden)
            hidden = self.transform_norm(hidden)
        embedding = self.embedding if self.output_embedding is None else self.output_embedding
        table = embedding[...]
        table = table.astype(hidden.dtype)
        precise_dtype = self.spec.precise_dtype
        scores = jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=precise_dtype)
        return scores + self.bias[...]


class MaskedLM(LanguageModel):
    """A language model that predicts tokens from both sides (BERT)."""

    def __call__(
        self,
        tokens: Array,
        positions: Array,
        key: Array | None = None,
        padding_mask: Array | None = None,
    ) -> Array:
        """float32 logits [batch, predictions, vocab_size] at `positions`, int [batch, predictions],
        of each sequence; other arguments as in `hidden`."""
        hidden = self.hidden(tokens, key, padding_mask=padding_mask)
        index = positions[..., None]  # [batch, predictions, 1]
        masked = jnp.take_along_axis(hidden, index, axis=1, mode="clip")
        return self.logits(masked)


class CausalLM(LanguageModel):
    """A language model that predicts each token from those before it; its blocks are causal.

    Padding needs no mask: it follows a text, so no prediction depends on it.
    """

    def __call__(
        self,
        tokens: Array,
        key: Array | None = None,
        padding_mask: Array | None = None,
    ) -> Array:
        """float32 logits [batch, tokens, vocab_size] of the token after each; arguments as in
        `hidden`."""
        hidden = self.hidden(tokens, key, padding_mask=padding_mask)
        return self.logits(hidden)

    def extend(
        self, tokens: Array, caches: list[CacheArrays] | None, first: Array, last: Array
    ) -> tuple[Array, list[CacheArrays]]:
        """Reads further tokens of a text: float32 logits [batch, vocab_size] of the token after
        them, and new caches.

        Args:
            tokens: int [batch, tokens], at the positions [first, first + tokens), all below n.
                Padding may follow the text: the next call overwrites it.
            caches: as the call before returned them; None at the beginning of a text.
            first: int, number of tokens read before.
            last: int, index of the text's last token among `tokens`.
        """
        x = self.embed(tokens, first=first)
        text = last + 1  # tokens that are not padding
        hidden, caches = self.encoder.extend(x, caches, first, text)
        last_hidden = jax.lax.dynamic_index_in_dim(hidden, last, axis=1, keepdims=False)
        logits = self.logits(last_hidden)
        return logits, caches


class SequenceClassifier(TextModel):
    """Classes of a text, or of a pair of texts.

    Args:
        pool: `cls` reads the last state of [CLS] (paper, section 4.4), `mean` the mean over all
            tokens that are not padding. After short pretraining the filters of a gMLP reach only a
            few tokens, and [CLS] is far from most.
        embedding: options of `TextModel`.
    """

    def __init__(
        self,
        spec: BlockSpec,
        vocab_size: int,
        classes: int,
        rngs: nnx.Rngs,
        *,
        pool: str = "cls",
        **embedding: Any,
    ):
        super().__init__(spec, vocab_size, rngs, **embedding, segments=True)
        self.pool = pool
        self.head = Linear(spec, spec.d_model, classes, rngs, init=_BERT)

    def __call__(
        self,
        tokens: Array,
        segments: Array,
        padding_mask: Array | None = None,
        key: Array | None = None,
        text_mask: Array | None = None,
    ) -> Array:
        """float32 logits [batch, classes]; arguments as in `hidden`, [CLS] first. Dropout applies
        to the pooled state too. `text_mask`, bool [batch, tokens], is False for padding, which the
        mean leaves out even if the encoder reads it; None if it is `padding_mask`."""
        encoder_key = None
        head_key = None
        if key is not None:
            encoder_key, head_key = split_keys(key, 2)
        states = self.hidden(tokens, encoder_key, segments, padding_mask)
        states = states.astype(self.spec.precise_dtype)
        pooled_mask = padding_mask if text_mask is None else text_mask
        pooled = pooled_states(states, self.pool, pooled_mask)  # [batch, d_model]
        if self.pooler is not None:
            projected = self.pooler(pooled)
            pooled = jnp.tanh(projected)
        pooled = dropout(pooled, self.spec.dropout, head_key)
        return self.head(pooled)


class PairClassifier(TextModel):
    """Classes of a pair of texts, which the same encoder reads separately (Long Range Arena, task
    Retrieval).

    The head gets [u, v, u * v, u - v] of the two pooled states, or with `interaction="concat"` [u,
    v] (google-research/long-range-arena, models/layers/common_layers.py). `pool` as in
    `SequenceClassifier`; `embedding` are the options of `TextModel`.
    """

    def __init__(
        self,
        spec: BlockSpec,
        vocab_size: int,
        classes: int,
        rngs: nnx.Rngs,
        *,
        pool: str = "cls",
        interaction: str = "nli",
        **embedding: Any,
    ):
        super().__init__(spec, vocab_size, rngs, **embedding)
        self.pool = pool
        self.nli = interaction == "nli"
        parts = 4 if self.nli else 2
        self.head = PairHead(spec, parts, classes, rngs)

    def __call__(
        self,
        tokens: Array,
        segments: Array,
        padding_mask: Array | None = None,
        key: Array | None = None,
        text_mask: Array | None = None,
    ) -> Array:
        """float32 logits [batch, classes] of tokens [batch, 2, tokens], also the shape of
        `segments`, `padding_mask` and `text_mask` (see `SequenceClassifier`)."""
        chex.assert_shape(tokens, (None, 2, None))
        encoder_key = None
        head_key = None
        if key is not None:
            *text_keys, head_key = split_keys(key, 3)
            keys_of_pairs = jnp.stack(text_keys, axis=1)  # [batch, 2]
            encoder_key = keys_of_pairs.reshape(-1)
        length = tokens.shape[-1]
        mask = None if padding_mask is None else padding_mask.reshape(-1, length)
        # the texts of all pairs one after another, [2 batch, tokens]
        texts = tokens.reshape(-1, length)
        text_segments = segments.reshape(-1, length)
        states = self.hidden(texts, encoder_key, text_segments, mask)
        pooled_mask = mask if text_mask is None else text_mask.reshape(-1, length)
        precise_states = states.astype(self.spec.precise_dtype)
        pooled = pooled_states(precise_states, self.pool, pooled_mask)  # [2 batch, d_model]
        x = self._features(pooled)
        x = dropout(x, self.spec.dropout, head_key)
        return self.head(x)

    def _features(self, pooled: Array) -> Array:
        """What the head reads of pooled states [2 batch, d_model]: [batch, parts * d_model]."""
        pairs = pooled.reshape(-1, 2, self.spec.d_model)
        u, v = jnp.moveaxis(pairs, 1, 0)
        features = [u, v]
        if self.nli:
            product = u * v
            difference = u - v
            features += [product, difference]
        return jnp.concatenate(features, axis=-1)


class PairHead(nnx.Module):
    """Linear layers of 4 d_model and 2 d_model, each with a ReLU, and the logits."""

    def __init__(self, spec: BlockSpec, parts: int, classes: int, rngs: nnx.Rngs):
        d_model = spec.d_model
        d_in = parts * d_model
        d_first = 4 * d_model
        d_second = 2 * d_model
        self.first = Linear(spec, d_in, d_first, rngs)
        self.second = Linear(spec, d_first, d_second, rngs)
        self.last = Linear(spec, d_second, classes, rngs)

    def __call__(self, x: Array) -> Array:
        """[batch, parts * d_model] to [batch, classes]."""
        x = self.first(x)
        x = jax.nn.relu(x)
        x = self.second(x)
        x = jax.nn.relu(x)
        return self.last(x)


class SpanPredictor(TextModel):
    """Scores of each token as the start and as the end of an answer (BERT, for SQuAD); options as
    in `TextModel`."""

    def __init__(self, spec: BlockSpec, vocab_size: int, rngs: nnx.Rngs, **embedding: Any):
        super().__init__(spec, vocab_size, rngs, **embedding, segments=True)
        self.spans = Linear(spec, spec.d_model, 2, rngs, init=_BERT)

    def __call__(
        self,
        tokens: Array,
        segments: Array,
        padding_mask: Array | None = None,
        key: Array | None = None,
    ) -> Array:
        """float32 scores [batch, tokens, 2], of starts and of ends; arguments as in `hidden`."""
        states = self.hidden(tokens, key, segments, padding_mask)
        states = states.astype(self.spec.precise_dtype)
        return self.spans(states)
