"""What a task is: a model with its loss and its metrics.

Three more things belong to a task, each a class of its own that the task names: the data that it is
trained on and scored by (`tasks.data.base.TaskData`), the answers of a trained model to single inputs
(`tasks.inference.prediction.Predictor`), and what a run takes from the run that starts it (`Inheritance`).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models import blocks, parameters
from gmlp_flax.models.encoder import find_encoder, pooled_states
from gmlp_flax.options import Option, options_of
from gmlp_flax.tasks.data.base import Files, TaskData
from gmlp_flax.tasks.inference.prediction import Predictor

Batch = dict[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]
Outputs = dict[str, Any]  # name -> array, the leading axis the example
Shapes = dict[str, tuple[tuple[int, ...], Any]]  # name -> shape and type of one example's array

# Sums over a whole evaluation: floats, or numpy arrays for sums of arrays.
Totals = dict[str, tuple[Any, float]]


class Baseline(NamedTuple):
    """What a trivial model scores on the same held-out data."""

    name: str  # what it answers, such as "token frequencies alone"
    metrics: dict[str, float]  # named as the task's own


@dataclasses.dataclass(frozen=True)
class Inheritance:
    """What a run takes from the run whose parameters start it, besides the options of the config
    that say so themselves (`Option.inherited`).

    Attributes:
        model: whether it takes the architecture of its model.
        shared: names of the files that both must share, such as the tokenizer's.
        optional: names of the files that a run may be without.
        heads: name of a file that may differ from the starting run's -> the beginning of the paths
            of the parameters that are then reinitialized.
        new_params: beginnings of paths of parameters that the starting run may not have; they are
            then reinitialized.
    """

    model: bool = False
    shared: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    heads: Mapping[str, str] = dataclasses.field(default_factory=dict)
    new_params: tuple[str, ...] = ()

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the files that a trained model cannot be without."""
        return *self.shared, *self.heads

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files that a trained model may have."""
        return *self.required, *self.optional


class Task(abc.ABC):
    """A model with its loss and its metrics.

    Losses and metrics are (sum, weight) over the examples of a batch, never means. Batches,
    microbatches, devices and hosts then add up to the same number however examples are distributed.

    A task of your own extends this class; the documentation has an example, under "extending".
    `config.task` names it.

    Args:
        config: of the run.
        files: what the model needs besides its parameters, by name, as `TaskData.assets` returns
            it. A stand-in replaces a missing file, which is enough for shapes and planning.

    Raises:
        DataError: a file is damaged, or does not suit the config.

    Attributes:
        options: the config keys that it adds, by dotted name.
        Data: what it is trained on and scored by.
        Predictor: how a trained model answers single inputs; None if it does not.
        inheritance: what a run takes from the run that starts it.
        metrics: names of the sums that `loss` returns; "loss" is among them.
        best: the evaluation metric that says which checkpoint is best, and whether "min" or "max"
            of it.
        hub_task: what the Hugging Face hub calls the task, its "pipeline tag"; "" if it has no name
            for it.
        lower_is_better: the metrics in `eval_metrics` that are better when they are lower.
        percent: metrics that are shown in percent, and the factor that makes them so.
        unit: what throughput counts: "tokens", "images" or "examples"; an example has
            `units_per_example` of them.
        as_classifier: keys of the config, with their values, that turn a model of this task into a
            classifier of other classes.
        tokenizer: of a model that reads text; None for other models.
    """

    options: ClassVar[Mapping[str, Option]] = {}
    Data: ClassVar[type[TaskData]] = TaskData
    Predictor: ClassVar[type[Predictor] | None] = None
    inheritance: ClassVar[Inheritance] = Inheritance()
    metrics: tuple[str, ...] = ("loss", "accuracy")
    best: tuple[str, str]
    hub_task: ClassVar[str] = ""
    lower_is_better: ClassVar[tuple[str, ...]] = ("loss", "perplexity")
    percent: ClassVar[dict[str, float]] = {"accuracy": 100.0}
    unit: str = "examples"
    units_per_example: int = 1
    as_classifier: ClassVar[Mapping[str, Any]] = {}
    tokenizer: Any = None

    def __init__(self, config: ConfigDict, files: Files = MappingProxyType({})):
        self.config = config
        self.files = files

    @classmethod  # noqa: B027 - a task without keys that could contradict each other
    def check(cls, config: ConfigDict) -> None:
        """Raises ConfigError for keys of the task that contradict each other, before any data is
        read."""

    def notes(self) -> list[str]:
        """Warnings about the config at the start of a run, a line each."""
        return []

    # The model.

    @abc.abstractmethod
    def example_shapes(self) -> Shapes:
        """Shape and type of each array of a training example, without the batch axis."""

    @property
    def length(self) -> int:
        """The number of tokens that the model is made for."""
        return self.config.model.length

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes of a classifier; () for other tasks."""
        return ()

    @abc.abstractmethod
    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """Builds the model."""

    def spec(self) -> Any:
        """The spec of the blocks that the config describes; raises ValueError if its options
        contradict each other."""
        return block_spec(self.config, self.length)

    def init(self, key: jax.Array) -> Any:
        """Fresh parameters as a nested dict; traceable."""
        rngs = nnx.Rngs(key)
        model = self.module(rngs)
        params = nnx.state(model, nnx.Param)
        return nnx.to_pure_dict(params)

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def shapes(self) -> Any:
        """Shapes and types of the parameters, a nested dict."""
        key = jax.random.key(0)
        return jax.eval_shape(self.init, key)

    def bind(self, params: Any) -> Any:
        """The model with the given parameters."""
        graphdef = nnx.graphdef(self._abstract_module)
        return nnx.merge(graphdef, params)

    def apply(self, params: Any, *inputs: Any) -> Any:
        """Calls the model with the given parameters."""
        model = self.bind(params)
        return model(*inputs)

    @functools.cached_property
    def _abstract_module(self) -> nnx.Module:
        return nnx.eval_shape(lambda: self.module(nnx.Rngs(0)))

    def param_metadata(self) -> dict[str, parameters.ParamMetadata]:
        """Path of each parameter -> how it is sharded, decayed and resized, and its layers."""
        return parameters.metadata(self._abstract_module)

    def stacks(self, params: Any) -> list[blocks.Block]:
        """The stacked blocks of the model's encoder, first layers first, each parameter's leading
        axis the layer; consecutive layers with one program in each."""
        model = self.bind(params)
        return find_encoder(model).runs

    def as_inputs(self, array: np.ndarray) -> np.ndarray:
        """A program's array, [batch, ...] and not empty, as `forward` reads it.

        Raises:
            DataError: `forward` cannot read it, or would read it as something else, such as ids out
                of range.
        """
        return array

    def scaled_inputs(self, inputs: Any) -> Any:
        """Arrays that suit the model as `forward` reads them: a pure function."""
        return inputs

    def forward(self, params: Any, inputs: Any) -> jax.Array:
        """The logits of arrays, as `Predictor.encode` makes them, in evaluation: a pure
        function."""
        return self.apply(params, inputs)

    def features(
        self, params: Any, inputs: Any, layers: Sequence[int] = (-1,), pool: str | None = None
    ) -> jax.Array:
        """The states of some layers (see `Encoder.states`) for the inputs of `forward`, side by
        side: [batch, tokens, channels]; with `pool`, "mean" or "cls", [batch, channels]."""
        model = self.bind(params)
        states = model.states(inputs, layers)
        return joined_states(states, pool)

    # The loss.

    def mix(self, batch: Batch, key: jax.Array) -> Batch:
        """Mixes the examples of a whole training batch (mixup, CutMix), before it is split into
        microbatches."""
        return batch

    def sums(self, params: Any, batch: Batch, weights: jax.Array, key: jax.Array | None) -> Sums:
        """All `metrics` of a batch, summed over its examples.

        A task defines this, or `loss` and `evaluate`.

        Args:
            params: of the model.
            batch: arrays [batch, ...].
            weights: of the examples, float32 [batch].
            key: random keys [batch] in training; None in evaluation.
        """
        raise ConfigError(
            f"the task {type(self).__name__} has no loss: define `sums`, or `loss` and `evaluate`"
        )

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """The summed loss, which is differentiated, and all `metrics`.

        `batch["key"]` holds a random key per example, the only source of randomness: an example
        draws the same numbers on every device.
        """
        keys = model_keys(batch)
        ones = jnp.ones(keys.shape, jnp.float32)  # [batch]
        sums = self.sums(params, batch, ones, keys)
        loss, _ = sums["loss"]
        return loss, sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """An evaluation batch.

        Returns:
            Sums over its examples, each counted `batch["weight"]` times, including "examples"; and
            the arrays [batch, ...] that `summarize` and `prediction_files` also need, {} for most
            tasks. With such outputs, batches have an "index", the order of the examples. A sum may
            be an array, such as a count per class; `summarize` and `baselines` get it as a numpy
            array.
        """
        weights = batch["weight"]
        sums = self.sums(params, batch, weights, None)
        examples = example_count(weights)
        return {**sums, "examples": examples}, {}

    # The metrics.

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """Names of the metrics of a whole evaluation that can rank checkpoints."""
        return self.metrics

    def summarize(self, sums: Totals, outputs: Outputs, data: Any) -> dict[str, float]:
        """The metrics of a whole evaluation, for people.

        Args:
            sums: over all batches.
            outputs: as numpy arrays [examples, ...].
            data: that were scored, of the task's `Data`.
        """
        metrics = means(sums, self.metrics)
        _, examples = sums["examples"]
        return {**metrics, "examples": int(examples)}

    def baselines(self, sums: Totals, data: Any) -> list[Baseline]:
        """What trivial models score on the data of an evaluation, for comparison with a run's last
        evaluation; [] if that is not known. It has the arguments of `summarize`."""
        return []

    def prediction_files(self, outputs: Outputs, data: Any) -> dict[str, bytes]:
        """The predictions of a whole evaluation as official scorers read them, by file name; most
        tasks have none. It has the arguments of `summarize`."""
        return {}

    def format_metrics(self, metrics: Mapping[str, float]) -> str:
        """Metrics in a line, for people: shares in percent, large counts with all their digits."""
        parts = []
        for name, value in metrics.items():
            plain_name = name.removeprefix("ema_")
            factor = self.percent.get(plain_name)
            if factor:
                percent = value * factor
                text = f"{percent:.1f}%"
            elif 1e4 <= value < 1e9:
                text = f"{value:,.0f}"
            else:
                text = f"{value:.4g}"
            parts.append(f"{name} {text}")
        return "  ".join(parts)

    # Predictions.

    @functools.cached_property
    def predictor(self) -> Any:
        """How a trained model answers single inputs, of the type `Predictor`.

        Raises:
            RunError: the task has no predictions.
        """
        if self.Predictor is None:
            name = type(self).__name__
            raise RunError(f"the task {name} has no predictions for single inputs")
        return self.Predictor(self)


def block_spec(config: ConfigDict, length: int) -> Any:
    """The spec of the blocks that a config describes, for `length` tokens.

    Raises:
        ValueError: its options contradict each other.
    """
    model = config.model
    if model.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "model.dtype is 'float64': set JAX_ENABLE_X64=1 in the environment as well"
        )
    block = blocks.find(model.block)
    options = options_of(block.Spec)
    values = {name: model[name] for name in options}
    return block.spec(length=length, **values)


def joined_states(
    states: list[jax.Array], pool: str | None, mask: jax.Array | None = None
) -> jax.Array:
    """The states of several layers side by side along the channels, each pooled if `pool` is given,
    over the tokens of a mask [batch, tokens]."""
    if pool:
        states = [pooled_states(state, pool, mask) for state in states]
    return jnp.concatenate(states, axis=-1)


def model_keys(batch: Batch) -> jax.Array:
    """The random keys of a batch's examples for dropout and stochastic depth, not the keys that
    masking uses."""
    fold_in = functools.partial(jax.random.fold_in, data=1 << 16)
    fold_in_each = jax.vmap(fold_in)
    return fold_in_each(batch["key"])


def example_count(weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum "examples" of an evaluation batch, each example counted `weights` times."""
    ones = jnp.ones_like(weights)
    return weighted_sum(ones, weights)


def weighted_sum(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(sum, weight) in float32."""
    precise_weights = weights.astype(jnp.float32)
    precise_values = values.astype(jnp.float32)
    weighted = precise_values * precise_weights
    total = weighted.sum()
    weight = precise_weights.sum()
    return total, weight


def means(sums: Totals, names: Iterable[str]) -> dict[str, float]:
    """The means of some sums over a whole evaluation, by name."""
    by_name = {}
    for name in names:
        total, weight = sums[name]
        by_name[name] = total / weight
    return by_name
