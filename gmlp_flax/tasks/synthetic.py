"""Synthetic tasks that measure what a token mixer can do: associative recall and MAD's six."""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data import pipeline
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.holdout import TRAIN
from gmlp_flax.data.synthetic import kinds
from gmlp_flax.data.synthetic.kinds import KINDS, Kind
from gmlp_flax.data.synthetic.recipe import IGNORED, Recipe
from gmlp_flax.models.auto_encoder import AutoEncoder
from gmlp_flax.models.text import MaskedLM
from gmlp_flax.options import (
    AT_LEAST_0,
    AT_LEAST_1,
    SHARE_BELOW_1,
    SIZE,
    VOCABULARY,
    Option,
    Range,
)
from gmlp_flax.tasks.base import Baseline, Batch, Shapes, Sums, Task, Totals
from gmlp_flax.tasks.data.base import TaskData
from gmlp_flax.tasks.language_modeling import cross_entropy
from gmlp_flax.tasks.text import TEXT_OPTIONS

POWER = Range("from 0 to 16", 0, 16)  # i^15 of the longest example is a finite float64
AROUND_ENCODER = ("scale_embeddings", "embedding_norm")
OF_RECIPE = ("pairs", "power", "fill", "noise", "noise_tokens", "copied", "motif")


def kind_of(config: ConfigDict) -> Kind:
    """The synthetic task of a config."""
    return KINDS[config.synthetic.task]


def recipe_of(config: ConfigDict) -> Recipe:
    """The sizes of a config's synthetic task."""
    options = {name: config.synthetic[name] for name in OF_RECIPE}
    return Recipe(
        length=config.model.length,
        vocab_size=config.model.vocab_size,
        both_ways=not config.model.causal,
        **options,
    )


class SyntheticData(TaskData):
    """Examples that are generated from (config.synthetic.data_seed, index)."""

    @functools.cache  # noqa: B019 - data live as long as their run
    def dataset(self, role: str) -> Dataset:
        """See `TaskData`."""
        options = self.config.synthetic
        recipe = recipe_of(self.config)
        seed = options.data_seed
        count = options.examples if role == TRAIN else options.heldout_examples
        return kinds.dataset(options.task, recipe, role, seed, count)

    def examples(self, role: str) -> pipeline.Source:
        """See `TaskData`: {"tokens", "targets"}, int32 [tokens] each."""
        return self.dataset(role).examples


class Synthetic(Task):
    """Predicts the answers of a synthetic task; the accuracy counts these alone.

    The model of `compression` is an auto-encoder; that of all others a language model whose logits
    are made where something is asked.
    """

    options: ClassVar[dict[str, Option]] = {
        **{f"model.{name}": TEXT_OPTIONS[f"model.{name}"] for name in ("length", *AROUND_ENCODER)},
        "model.vocab_size": Option(
            256,
            "symbols of the task; the embedding table has one row more, a mask",
            VOCABULARY,
            architecture=True,
        ),
        "synthetic.task": Option(
            "mqar",
            "mqar: multi-query associative recall (Zoology); the others are MAD's",
            tuple(KINDS),
        ),
        "synthetic.pairs": Option(8, "mqar: pairs of a key and its value", SIZE),
        "synthetic.power": Option(
            0.01, "mqar: a gap of i pairs is as likely as i^(power - 1)", POWER
        ),
        "synthetic.fill": Option(False, "mqar: random symbols between the queries, not 0"),
        "synthetic.noise": Option(0.2, "noisy_recall: share of noise", SHARE_BELOW_1),
        "synthetic.noise_tokens": Option(16, "noisy_recall: symbols that are noise", SIZE),
        "synthetic.copied": Option(16, "selective_copying: tokens to copy", SIZE),
        "synthetic.motif": Option(3, "fuzzy_recall: tokens of a key or a value, at most", SIZE),
        "synthetic.examples": Option(100_000, "examples to train on", AT_LEAST_1, scaled=True),
        "synthetic.heldout_examples": Option(3_000, "held-out examples", AT_LEAST_1),
        "synthetic.data_seed": Option(0, "which examples are generated", AT_LEAST_0),
    }
    Data: ClassVar[type[TaskData]] = SyntheticData
    best = ("accuracy", "max")
    unit = "tokens"

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        kind = kind_of(config)
        recipe = recipe_of(config)
        kind.check(recipe)

    @property
    def kind(self) -> Kind:
        """The synthetic task."""
        return kind_of(self.config)

    @property
    def units_per_example(self) -> int:
        """See `Task`: the tokens that the model reads."""
        return self.length

    def example_shapes(self) -> Shapes:
        """See `Task`."""
        tokens = ((self.length,), jnp.int32)
        return {"tokens": tokens, "targets": tokens}

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """See `Task`."""
        options = self.config.model
        spec = self.spec()
        rows = options.vocab_size + 1
        embedding = {name: options[name] for name in AROUND_ENCODER}
        make = AutoEncoder if self.kind.compresses else MaskedLM
        return make(spec, rows, rngs, **embedding)

    def sums(self, params: Any, batch: Batch, weights: jax.Array, key: jax.Array | None) -> Sums:
        """See `Task`."""
        tokens = batch["tokens"]
        targets = batch["targets"]
        if self.kind.compresses:
            logits = self.apply(params, tokens, key)
        else:
            positions = self._positions(targets)
            targets = jnp.take_along_axis(targets, positions, axis=1)
            logits = self.apply(params, tokens, positions, key)
        is_asked = targets != IGNORED
        target_weights = weights[:, None] * is_asked
        return cross_entropy(logits, targets, target_weights)

    def _positions(self, targets: jax.Array) -> jax.Array:
        """Where something is asked, int32 [batch, positions]; where fewer answers are asked for
        than positions, others follow."""
        most = self._most_asked()
        if most >= self.length:
            all_positions = jnp.arange(self.length)
            return jnp.broadcast_to(all_positions, targets.shape)
        is_asked = targets != IGNORED
        scores = is_asked.astype(jnp.float32)
        _, positions = jax.lax.top_k(scores, most)
        return positions

    def _most_asked(self) -> int:
        """The most positions of an example at which something is asked."""
        if self.config.synthetic.task == "mqar":
            return self._recipe.pairs
        if self.config.model.causal:  # trained on every next token
            return self.length
        return self.kind.most_asked(self._recipe)

    @functools.cached_property
    def _recipe(self) -> Recipe:
        return recipe_of(self.config)

    def baselines(self, sums: Totals, data: Any) -> list[Baseline]:
        """See `Task`: a guess among the answers that are possible."""
        kind = self.kind
        accuracy = 1 / kind.answers(self._recipe)
        return [Baseline(kind.guess, {"accuracy": accuracy})]
