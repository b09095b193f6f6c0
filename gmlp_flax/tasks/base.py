"""What the training loop knows of a task."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data.errors import DataError
from gmlp_flax.data.pipeline import Batches
from gmlp_flax.models.spec import EncoderSpec

Batch = dict[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]
Outputs = dict[str, Any]  # name -> array, the leading axis the example

MODEL = 1 << 16  # folded into an example's key
EMBEDDED = "embedded"  # the value of config.data.train that stands for data which needs no download


class Task(abc.ABC):
    """A model with its data, its loss and its metrics.

    Losses and metrics are (sum, weight) over the examples of a batch, never means: batches, microbatches, devices and
    hosts then add up to the same number however the examples are spread.

    Attributes:
        metrics: names of what `loss` sums; "loss" is among them.
        best: the evaluation metric that says which checkpoint is best, and whether "min" or "max" of it.
        unit: what throughput counts, "tokens" or "images".
        units_per_example: how many of them an example has.
        shared_assets: those of `assets` that a run must share with the one whose parameters start it.
        inherits: keys of config.model that a run takes from that other one.
        heads: those of `assets` that it need not share: where they differ, the parameters whose paths begin with the
            value start anew.
        added: beginnings of paths of parameters that the other model may lack; they then start anew.
        inherited: `shared_assets` of the other run, by name, for a run that begins.
    """

    metrics: tuple[str, ...] = ("loss", "accuracy")
    best: tuple[str, str]
    unit: str
    units_per_example: int = 1
    shared_assets: tuple[str, ...] = ()
    inherits: tuple[str, ...] = ()
    heads: Mapping[str, str] = {}
    added: tuple[str, ...] = ()

    def __init__(self, config: ConfigDict, folder: str, inherited: Mapping[str, bytes] = MappingProxyType({})):
        self.config, self.folder, self.inherited = config, folder, inherited

    @abc.abstractmethod
    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """Builds the model."""

    def mix(self, batch: Batch, key: jax.Array) -> Batch:
        """A training batch, examples mixed with each other, before it is cut into microbatches and over devices."""
        return batch

    @abc.abstractmethod
    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """The summed loss, which is differentiated, and all `metrics`.

        `batch["key"]` holds a key an example: all randomness, so that an example's is the same wherever it is run.
        """

    @abc.abstractmethod
    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """An evaluation batch.

        Returns:
            Sums over its examples, each counted `batch["weight"]` times, "examples" included; and what else `summarize`
            and `prediction_files` need of each example, arrays [batch, ...]: {} for most tasks. With outputs, batches
            have an "index" that gives the order of the examples.
        """

    @abc.abstractmethod
    def summarize(self, sums: dict[str, tuple[float, float]], outputs: Outputs) -> dict[str, float]:
        """The metrics of a whole evaluation, for people; `outputs` as numpy arrays [examples, ...]."""

    @property
    @abc.abstractmethod
    def evaluated(self) -> tuple[str, ...]:
        """Names of those metrics of a whole evaluation by which checkpoints can be ranked."""

    @abc.abstractmethod
    def train_batches(self, start: int, host: int, hosts: int) -> Batches:
        """This host's share of the training batches, batch `start` first."""

    @abc.abstractmethod
    def evaluation_batches(self, host: int, hosts: int) -> Batches:
        """This host's share of the held-out batches, with "weight" [batch]."""

    @abc.abstractmethod
    def evaluation_examples(self) -> int:
        """Number of held-out examples, over all hosts."""

    @abc.abstractmethod
    def assets(self) -> dict[str, bytes]:
        """The files that predictions need beside the parameters, by name; run folder and checkpoints hold them."""

    def prediction_files(self, outputs: Outputs) -> dict[str, bytes]:
        """The predictions of a whole evaluation as official scorers read them: content by name. None for most tasks."""
        return {}

    def init(self, key: jax.Array) -> Any:
        """Fresh parameters as a nested dict; traceable."""
        return nnx.to_pure_dict(nnx.state(self.module(nnx.Rngs(key)), nnx.Param))

    def shapes(self) -> Any:
        """Shapes and types of the parameters, a nested dict."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def apply(self, params: Any, *inputs: Any) -> Any:
        """Calls the model with the given parameters."""
        return nnx.merge(self._definition(), params)(*inputs)

    def _definition(self):
        if not hasattr(self, "_graph"):
            self._graph = nnx.graphdef(nnx.eval_shape(lambda: self.module(nnx.Rngs(0))))
        return self._graph

    def spec(self, length: int) -> EncoderSpec:
        """The encoder that the config describes, for so many tokens."""
        names = {field.name for field in dataclasses.fields(EncoderSpec)} - {"length"}
        return EncoderSpec(length=length, **{name: self.config.model[name] for name in names})

    def evaluation_batch_size(self) -> int:
        """Examples of an evaluation batch, over all hosts."""
        return self.config.eval.batch_size or self.config.batch_size


def model_keys(batch: Batch) -> jax.Array:
    """The random keys of a batch's examples for dropout and stochastic depth: others than those which mask."""
    return jax.vmap(lambda key: jax.random.fold_in(key, MODEL))(batch["key"])


def weighted(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(sum, weight) in float32."""
    weights = weights.astype(jnp.float32)
    return (values.astype(jnp.float32) * weights).sum(), weights.sum()


def require_path(path: str, key: str) -> str:
    """A path that exists.

    Raises:
        DataError: naming the config key that gave it.
    """
    if not path:
        raise DataError(f"config.{key} is not set; give --config.{key}=PATH, a file or a folder")
    if not os.path.exists(path):
        raise DataError(f"config.{key} is {path!r}, which does not exist; give a file or a folder")
    return path
