"""Causal language modelling: each token is predicted by those before it, and a trained model
continues a text."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data.text.tokenizer import MASK
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models import blocks
from gmlp_flax.models.text import CausalLM
from gmlp_flax.tasks import base
from gmlp_flax.tasks.base import Batch, Outputs, Sums, Totals, model_keys, weighted_sum
from gmlp_flax.tasks.generation import GeneratedText, Sampling, TextGenerator
from gmlp_flax.tasks.language_modeling import LanguageModeling, cross_entropy
from gmlp_flax.tasks.prediction import Prepared


class CausalLanguageModeling(LanguageModeling):
    """Predicts each token of a text by those before it.

    A window is [CLS] and the next n tokens of the text, a [SEP] after each document among them: the
    model reads the first n and predicts the last n, so that every token of a text is predicted once
    in an epoch. [PAD] after the end of a text is read, where nothing sees it, and not predicted.
    """

    lower_is_better = (*LanguageModeling.lower_is_better, "bits_per_byte")
    more_tokens = 1
    closed = False
    generates = True
    hub_task = "text-generation"
    prediction_label = "next: "

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        super().check(config)
        if not blocks.find(config.model.block).can_be_causal:
            able = ", ".join(name for name, block in blocks.BLOCKS.items() if block.can_be_causal)
            what = f"config.model.block is {config.model.block!r}, which mixes all tokens"
            raise ConfigError(f"{what}: expected one of {able}")
        if not config.model.causal:
            raise ConfigError(
                "config.task is 'causal_lm' and config.model.causal is False: set it to True"
            )

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        return CausalLM(self.spec(), self.config.model.vocab_size, rngs, **self.embedding())

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        targets, weights = self._targets(batch)
        sums = cross_entropy(
            self.apply(params, batch["tokens"][:, :-1], model_keys(batch)), targets, weights
        )
        return sums["loss"][0], sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        targets, weights = self._targets(batch)
        weights = weights * batch["weight"][:, None]
        sums = cross_entropy(self.apply(params, batch["tokens"][:, :-1], None), targets, weights)
        sums |= {"bytes": weighted_sum(jnp.asarray(self.tokenizer.byte_counts())[targets], weights)}
        return self.evaluation_sums(sums, batch, targets, weights), {}

    def _targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The tokens to predict, int [batch, n], and their weights, 0 for padding."""
        targets = batch["tokens"][:, 1:]
        return targets, (targets != self.tokenizer.pad_id).astype(jnp.float32)

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        return *super().eval_metrics, "bits_per_byte"

    def summarize(self, sums: Totals, outputs: Outputs) -> dict[str, float]:
        """Perplexity of tokens, and the loss in bits for each byte of the text, whatever the
        vocabulary."""
        metrics = super().summarize(sums, outputs)
        return {
            "perplexity": metrics.pop("perplexity"),
            "bits_per_byte": _bits(sums["loss"][0], sums),
        } | metrics

    def baselines(self, sums: Totals) -> list[base.Baseline]:
        """See `LanguageModeling`; in bits per byte as well."""
        [(name, metrics)] = super().baselines(sums)
        loss = math.log(metrics["perplexity"]) * sums["targets"][1]
        return [base.Baseline(name, metrics | {"bits_per_byte": _bits(loss, sums)})]

    @property
    def unpredicted(self) -> tuple[int, ...]:
        return self.tokenizer.pad_id, self.tokenizer.cls_id, self.tokenizer.mask_id

    def generate(self, params: Any, prompt: str, sampling: Sampling) -> GeneratedText:
        """See `Task`."""
        _refuse_mask(prompt)
        return self.generator.generate(params, prompt, sampling)

    def encode(self, inputs: Sequence[str]) -> np.ndarray:
        """See `Task`: int32 [batch, tokens], each text after [CLS]."""
        return self.pad([[self.tokenizer.cls_id, *self.tokenizer.encode(line)] for line in inputs])

    def prepare(self, given: str, truncate: bool = False) -> Prepared:
        """See `Task`: a line of text, of which the model reads the end, whose next token it ranks.

        Raises:
            RunError: a line has a [MASK].
        """
        _refuse_mask(given)
        ids = [
            self.tokenizer.cls_id,
            *(text := self.tokenizer.encode(given))[max(0, len(text) - self.length + 1) :],
        ]
        # what follows changes nothing
        arrays = {"tokens": np.array(ids, np.int32), "last": np.array([len(ids) - 1])}
        return Prepared([arrays], 1, self.note_of_prompt(len(text)))

    def note_of_prompt(self, tokens: int) -> str:
        """A note if the model does not read the whole prompt; "" if it does."""
        most = self.length - 1
        return (
            ""
            if tokens <= most
            else f"the line has {tokens} tokens; the model reads the last {most} of them"
        )

    def prediction_scores(self, params: Any, batch: Batch) -> jax.Array:
        """See `Task`: the one prediction is the token after "last"."""
        model = self.bind(params)
        return model.logits(
            jnp.take_along_axis(model.hidden(batch["tokens"]), batch["last"][..., None], axis=1)
        )

    @functools.cached_property
    def generator(self) -> TextGenerator:
        """The text generator of the model."""
        return TextGenerator(
            lambda params, *inputs: self.bind(params).extend(*inputs), self.length, self.tokenizer
        )


def _bits(loss: float, sums: Totals) -> float:
    """A loss in nats as bits per byte of the text that was predicted."""
    return loss / math.log(2) / max(sums["bytes"][0], 1)


def _refuse_mask(text: str) -> None:
    if MASK in text:
        raise RunError(
            f"a causal model continues a text and fills no {MASK}: leave it out of {text[:60]!r}"
        )
