"""Causal language modeling: each token is predicted by those before it, and a trained model
continues a text."""

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data.holdout import HELDOUT
from gmlp_flax.data.text.tokenizer import MASK
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models import blocks
from gmlp_flax.models.text import CausalLM
from gmlp_flax.tasks import recall_slices
from gmlp_flax.tasks.base import Baseline, Batch, Outputs, Sums, Totals, model_keys, weighted_sum
from gmlp_flax.tasks.data.language import LanguageData
from gmlp_flax.tasks.inference.generation import GeneratedText, TextGenerator
from gmlp_flax.tasks.inference.prediction import Answer, GeneratingPredictor, Prepared
from gmlp_flax.tasks.inference.sampling import Sampling
from gmlp_flax.tasks.language_modeling import LanguageModeling, cross_entropy
from gmlp_flax.tasks.text import TextPredictor


class CausalData(LanguageData):
    """Windows of [CLS] and the next n tokens of the text, a [SEP] after each document among
    them."""

    extra_tokens = 1
    closed = False
    keep_white_space = True

    @functools.cached_property
    def bytes_of_pieces(self) -> float:
        """Bytes of the held-out text for each byte of its tokens' pieces: 1, unless the tokenizer
        normalizes text; more if it drops white space."""
        heldout = self.windows(HELDOUT).prepared
        counts = heldout.counts(self.tokenizer.vocab_size)  # of some tokens of a long text
        bytes_of_token = self.tokenizer.byte_counts()
        counted_bytes = counts * bytes_of_token
        counted_tokens = max(1, counts.sum())
        mean_bytes = counted_bytes.sum() / counted_tokens
        piece_bytes = mean_bytes * heldout.tokens
        return heldout.text_bytes / max(1.0, piece_bytes)


class CausalPredictor(TextPredictor, GeneratingPredictor):
    """Ranks the token after a text, or continues it."""

    @functools.cached_property
    def names(self) -> list[str]:
        """See `Predictor`: the text of each token of the vocabulary."""
        tokenizer = self.tokenizer
        return [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]

    def label(self, number: int) -> str:
        """See `Predictor`."""
        return "next"

    def encode(self, inputs: Sequence[str]) -> np.ndarray:
        """See `Predictor`: int32 [batch, tokens], each text after [CLS]."""
        tokenizer = self.tokenizer
        texts = []
        for line in inputs:
            ids = tokenizer.encode(line)
            texts.append([tokenizer.cls_id, *ids])
        return self.padded(texts)

    def prepare(self, value: str, truncate: bool = False) -> Prepared:
        """See `Predictor`: a line of text. The model reads its end, and ranks the next token.

        Raises:
            RunError: a line has a [MASK].
        """
        refuse_mask(value)
        tokenizer = self.tokenizer
        text = tokenizer.encode(value)
        room = self.task.length - 1  # besides [CLS]
        first = max(0, len(text) - room)
        ids = [tokenizer.cls_id, *text[first:]]
        last = len(ids) - 1  # the padding after it changes nothing
        arrays = {
            "tokens": np.array(ids, np.int32),
            "last": np.array([last]),
        }
        note = self.note_of_prompt(len(text))
        return Prepared([arrays], 1, note)

    def note_of_prompt(self, tokens: int) -> str:
        """See `GeneratingPredictor`."""
        most = self.task.length - 1
        if tokens <= most:
            return ""
        return f"the line has {tokens} tokens; the model reads the last {most} of them"

    def scores(self, params: Any, batch: Batch) -> jax.Array:
        """See `Predictor`: the one prediction is the token after "last"."""
        model = self.task.bind(params)
        states = model.hidden(batch["tokens"])
        last = batch["last"]  # [batch, 1]
        positions = last[..., None]
        last_states = jnp.take_along_axis(states, positions, axis=1)
        return model.logits(last_states)

    def generate(self, params: Any, prompt: str, sampling: Sampling) -> GeneratedText:
        """See `GeneratingPredictor`."""
        refuse_mask(prompt)
        return self.generator.generate(params, prompt, sampling)

    @functools.cached_property
    def generator(self) -> TextGenerator:
        """What writes texts with the model."""

        def extend(params: Any, *inputs: Any) -> Any:
            """See `TextGenerator`."""
            model = self.task.bind(params)
            return model.extend(*inputs)

        return TextGenerator(extend, self.task.length, self.tokenizer)

    def format(self, answer: Answer) -> str:
        """See `Predictor`."""
        if answer.text is not None:
            return f"{answer.input}{answer.text}"
        return super().format(answer)


def refuse_mask(text: str) -> None:
    """Raises RunError if a text has a [MASK]."""
    if MASK in text:
        start = text[:60]
        raise RunError(
            f"a causal model continues a text and fills no {MASK}: leave it out of {start!r}"
        )


class CausalLanguageModeling(LanguageModeling):
    """Predicts each token of a text by those before it.

    A window is [CLS] and the next n tokens of the text, a [SEP] after each document among them. The
    model reads the first n and predicts the last n, so every token of a text is predicted once in
    an epoch. [PAD] after the end of a text is read, where no token sees it, and is not predicted.
    """

    Data: ClassVar = CausalData
    Predictor: ClassVar = CausalPredictor
    lower_is_better = (*LanguageModeling.lower_is_better, "bits_per_byte")
    hub_task = "text-generation"

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        super().check(config)
        name = config.model.block
        if not blocks.find(name).can_be_causal:
            able = [name for name, block in blocks.BLOCKS.items() if block.can_be_causal]
            expected = ", ".join(able)
            raise ConfigError(
                f"config.model.block is {name!r}, which mixes all tokens: expected one of "
                f"{expected}"
            )
        if not config.model.causal:
            raise ConfigError(
                "config.task is 'causal_lm' and config.model.causal is False: set it to True"
            )

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """See `Task`."""
        spec = self.spec()
        rows = self.config.model.vocab_size
        embedding = self.embedding()
        return CausalLM(spec, rows, rngs, **embedding)

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """See `Task`."""
        targets, weights = self._targets(batch)
        keys = model_keys(batch)
        logits = self._logits(params, batch, keys)
        sums = cross_entropy(logits, targets, weights)
        loss, _ = sums["loss"]
        return loss, sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """See `Task`."""
        targets, weights = self._targets(batch)
        example_weights = batch["weight"]
        weights = weights * example_weights[:, None]
        logits = self._logits(params, batch, None)
        sums = cross_entropy(logits, targets, weights)
        bytes_of_token = jnp.asarray(self.tokenizer.byte_counts())
        target_bytes = bytes_of_token[targets]
        sums["bytes"] = weighted_sum(target_bytes, weights)
        if self.config.eval.recall_slices:
            repeats = self._repeats(batch)
            sums |= self.recall_sums(logits, targets, weights, repeats)
        all_sums = self.evaluation_sums(sums, batch, targets, weights)
        return all_sums, {}

    def _repeats(self, batch: Batch) -> jax.Array:
        """Which of the tokens to predict are AR hits, see `recall_slices`: bool [batch, n]."""
        tokens = batch["tokens"]
        ordinary = recall_slices.hide(tokens, self.tokenizer.special_ids)
        documents = self.documents(tokens)
        find_repeats = jax.vmap(recall_slices.repeat_earlier_bigrams)
        repeats = find_repeats(ordinary, documents)
        hits = repeats & ~batch["is_frequent"]
        return hits[:, 1:]

    def _logits(self, params: Any, batch: Batch, keys: jax.Array | None) -> jax.Array:
        """Logits of the token after each, float32 [batch, n, vocabulary]; `keys` are given in
        training."""
        window = batch["tokens"]
        tokens = window[:, :-1]
        mask = None
        if self.config.data.mask_documents:
            mask = self.padding_mask(tokens)
        return self.apply(params, tokens, keys, mask)

    def _targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The tokens to predict, int [batch, n], and their weights, 0 for padding."""
        window = batch["tokens"]
        targets = window[:, 1:]
        is_text = targets != self.tokenizer.pad_id
        weights = is_text.astype(jnp.float32)
        return targets, weights

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """See `Task`."""
        return *super().eval_metrics, "bits_per_byte"

    def summarize(self, sums: Totals, outputs: Outputs, data: Any) -> dict[str, float]:
        """Perplexity of tokens, and the loss in bits for each byte of the text, whatever the
        vocabulary."""
        metrics = super().summarize(sums, outputs, data)
        perplexity = metrics.pop("perplexity")
        loss, _ = sums["loss"]
        bits = bits_per_byte(loss, sums, data)
        return {"perplexity": perplexity, "bits_per_byte": bits, **metrics}

    def baselines(self, sums: Totals, data: Any) -> list[Baseline]:
        """See `LanguageModeling`; in bits per byte as well."""
        [frequencies] = super().baselines(sums, data)
        metrics = frequencies.metrics
        _, predictions = sums["targets"]
        mean_loss = math.log(metrics["perplexity"])
        loss = predictions * mean_loss
        bits = bits_per_byte(loss, sums, data)
        with_bits = {**metrics, "bits_per_byte": bits}
        return [frequencies._replace(metrics=with_bits)]

    @property
    def unpredicted(self) -> tuple[int, ...]:
        """See `LanguageModeling`: [SEP] ends a document, and is a target."""
        tokenizer = self.tokenizer
        return tokenizer.pad_id, tokenizer.cls_id, tokenizer.mask_id


def bits_per_byte(loss: float, sums: Totals, data: CausalData) -> float:
    """A loss in nats as bits per byte of the predicted text before its normalization, so that
    tokenizers can be compared."""
    piece_bytes, _ = sums["bytes"]
    text_bytes = piece_bytes * data.bytes_of_pieces
    bits = loss / math.log(2)
    return bits / max(text_bytes, 1)
