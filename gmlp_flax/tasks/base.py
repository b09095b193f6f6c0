"""What a task is: all that training, evaluation, planning and prediction know of one."""

from __future__ import annotations

import abc
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data import pipeline
from gmlp_flax.data.fingerprints import Fingerprint
from gmlp_flax.data.pipeline import Batches
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.io import files, json_files
from gmlp_flax.models import blocks, parameters
from gmlp_flax.models.encoder import find_encoder, pooled_states
from gmlp_flax.options import Option, options_of
from gmlp_flax.tasks.generation import GeneratedText, Sampling
from gmlp_flax.tasks.prediction import Answer, Candidates, Prepared, Stream

Batch = dict[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]
Outputs = dict[str, Any]  # name -> array, the leading axis the example
Shapes = dict[str, tuple[tuple[int, ...], Any]]  # name -> shape and type of one example's array

# Sums over a whole evaluation: floats, or numpy arrays for sums of arrays
Totals = dict[str, tuple[Any, float]]


class Baseline(NamedTuple):
    """What a trivial model scores on the same held-out data."""

    name: str  # what it answers, such as "token frequencies alone"
    metrics: dict[str, float]  # named as the task's own


class Task(abc.ABC):
    """A model with its data, its loss and its metrics.

    Losses and metrics are (sum, weight) over the examples of a batch, never means: batches,
    microbatches, devices and hosts then add up to the same number however the examples are spread.

    A task of your own extends this class; the documentation has an example, under "extending".
    `config.task` names it.

    Attributes:
        options: the config keys that it adds, by dotted name.
        metrics: names of the sums that `loss` returns; "loss" is among them.
        best: the evaluation metric that says which checkpoint is best, and whether "min" or "max"
            of it.
        hub_task: what the Hugging Face hub calls the task, its "pipeline tag"; "" if it has no name
            for it.
        lower_is_better: the names in `eval_metrics` of which less is better.
        percent: metrics that are shown in percent, and the factor that makes them so.
        unit: what throughput counts: "tokens", "images" or "examples"; an example has
            `units_per_example` of them.
        generates: whether a trained model writes on after a text, by `generate`.
        predicts_files: whether `predict` takes paths of files; else it takes lines of text.
        predicts_numbers: whether a prediction is a number in a unit of its own, not the probability
            of a name.
        prediction_label: what is printed before a prediction of an input; {} stands for its number,
            from 1.
        pad_id: fills up "tokens" of shorter examples to predict to the length of others.
        shared_assets: the names in `assets` that a run must share with the run whose parameters
            start it.
        optional_assets: the names in `assets` that a run may lack.
        inherited: these files, by name, that the run folder need not have: of the run that starts
            this one, or of the checkpoint that is loaded.
        inherits_model: whether a run takes the architecture of its model from the run that starts
            it.
        inherited_keys: keys of the config that a run takes from the run that starts it, unless it
            sets them itself.
        heads: names in `assets` that may differ from the starting run's, each with the beginning of
            the paths of the parameters that then start anew.
        new_params: beginnings of paths of parameters that the starting run may lack; they then
            start anew.
        as_classifier: keys of the config, with their values, that make a classifier of classes of
            one's own of it.
    """

    options: ClassVar[Mapping[str, Option]] = {}
    metrics: tuple[str, ...] = ("loss", "accuracy")
    best: tuple[str, str]
    hub_task: ClassVar[str] = ""
    lower_is_better: ClassVar[tuple[str, ...]] = ("loss", "perplexity")
    percent: ClassVar[dict[str, float]] = {"accuracy": 100.0}
    unit: str
    units_per_example: int = 1
    generates: ClassVar[bool] = False
    predicts_files: ClassVar[bool] = False
    predicts_numbers: ClassVar[bool] = False
    prediction_label: ClassVar[str] = ""
    pad_id: int = 0
    shared_assets: tuple[str, ...] = ()
    optional_assets: ClassVar[tuple[str, ...]] = ()
    inherits_model: ClassVar[bool] = False
    inherited_keys: ClassVar[tuple[str, ...]] = ()
    heads: Mapping[str, str] = {}
    new_params: tuple[str, ...] = ()
    as_classifier: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self, config: ConfigDict, folder: str, inherited: Mapping[str, bytes] = MappingProxyType({})
    ):
        self.config, self.folder, self.inherited = config, folder, inherited

    @classmethod  # noqa: B027 - a task without keys that could contradict each other
    def check(cls, config: ConfigDict) -> None:
        """Raises ConfigError for keys of the task that contradict each other, before any data is
        read."""

    @classmethod
    def without_data(
        cls, config: ConfigDict, files: Mapping[str, bytes] = MappingProxyType({})
    ) -> Task:
        """A task that reads no data: its model, loss and shapes, for checks, planning and loaded
        models. `files` are those of `assets`, by name; what is not among them has a stand-in."""
        return cls(config, "", files)

    @abc.abstractmethod
    def example_shapes(self) -> Shapes:
        """Shape and type of each array of a training example, without the batch's axis."""

    @property
    def length(self) -> int:
        """The number of tokens that the model is made for."""
        return self.config.model.length

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes of a classifier; () for other tasks."""
        return ()

    def class_sizes(self) -> Sequence[int] | None:
        """The number of training examples of each of `class_names`; None: not known."""
        return None

    @abc.abstractmethod
    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """Builds the model."""

    def mix(self, batch: Batch, key: jax.Array) -> Batch:
        """Mixes the examples of a whole training batch (mixup, CutMix), before it is split into
        microbatches."""
        return batch

    @abc.abstractmethod
    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """The summed loss, which is differentiated, and all `metrics`.

        `batch["key"]` holds a random key per example, the only source of randomness: an example
        draws the same numbers on whatever device it is run.
        """

    @abc.abstractmethod
    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """An evaluation batch.

        Returns:
            Sums over its examples, each counted `batch["weight"]` times, "examples" included; and
            the arrays [batch, ...] that `summarize` and `prediction_files` also need, {} for most
            tasks. With such outputs, batches have an "index" that gives the order of the examples.
            A sum may be an array, such as a count per class; `summarize` and `baselines` get it as
            a numpy array.
        """

    @abc.abstractmethod
    def summarize(self, sums: Totals, outputs: Outputs) -> dict[str, float]:
        """The metrics of a whole evaluation, for people; `outputs` as numpy arrays [examples,
        ...]."""

    def baselines(self, sums: Totals) -> list[Baseline]:
        """What trivial models score on the data of an evaluation, to stand beside a run's last; []
        if not known."""
        return []

    def format_metrics(self, metrics: Mapping[str, float]) -> str:
        """Metrics in a line, for people: shares in percent, large counts with all their digits."""
        parts = []
        for name, value in metrics.items():
            if factor := self.percent.get(name.removeprefix("ema_")):
                parts.append(f"{name} {value * factor:.1f}%")
            else:
                parts.append(
                    f"{name} {value:,.0f}" if 1e4 <= value < 1e9 else f"{name} {value:.4g}"
                )
        return "  ".join(parts)

    @property
    @abc.abstractmethod
    def eval_metrics(self) -> tuple[str, ...]:
        """Names of the metrics of a whole evaluation that can rank checkpoints."""

    def examples(self, side: str) -> Any:
        """The examples of a side, "train" or "heldout", as a pipeline.Source.

        A task without it defines the four methods below.
        """
        raise ConfigError(
            f"the task {type(self).__name__} has no examples: define `examples(side)`"
        )

    def fingerprint(self, side: str) -> Fingerprint:
        """What recognises the data of a side when a run goes on (`data.fingerprints`); {} if they
        are not compared."""
        return {}

    def train_batches(self, start: int, host: int, hosts: int) -> Batches:
        """This host's share of the training batches, batch `start` first."""
        return pipeline.train_batches(
            self.examples("train"), start=start, host=host, hosts=hosts, **self.pipeline_options()
        )

    def evaluation_batches(self, host: int, hosts: int, shares: int = 1) -> Batches:
        """This host's share of the held-out batches, with "weight" [batch]; `shares` divides their
        size."""
        batch_size = self.evaluation_batch_size(shares)
        return pipeline.evaluation_batches(
            self.examples("heldout"), batch_size=batch_size, host=host, hosts=hosts
        )

    def evaluation_examples(self) -> int:
        """Number of held-out examples, over all hosts."""
        return len(self.examples("heldout"))

    def training_examples(self) -> int | None:
        """Number of training examples, over all hosts; None: not known."""
        return len(self.examples("train"))

    def pipeline_options(self) -> dict[str, Any]:
        """The config's arguments of `pipeline.train_batches`."""
        return dict(
            seed=self.config.seed,
            batch_size=self.config.batch_size,
            workers=self.config.data.workers,
        )

    @abc.abstractmethod
    def assets(self) -> dict[str, bytes]:
        """The files that predictions need beside the parameters, by name; run folder and
        checkpoints hold them."""

    def saved_file(self, name: str) -> bytes | None:
        """One of `assets` in the run folder, else among `inherited`; None if there is none."""
        path = os.path.join(self.folder, name)
        if self.folder and files.exists(path):
            return files.read_small(path)
        return self.inherited.get(name)

    def saved_names(self, name: str) -> tuple[str, ...]:
        """The names of classes in a JSON file of the run folder: a list, or "labels" in an object;
        () without the file.

        Raises:
            DataError: there is no such list in it, or an empty one.
        """
        if (content := self.saved_file(name)) is None:
            return ()
        values = json_files.parse(content, path := os.path.join(self.folder, name))
        values = values.get("labels") if isinstance(values, dict) else values
        if (
            not isinstance(values, list)
            or not values
            or not all(isinstance(value, str) for value in values)
        ):
            raise DataError(
                f"{path} is damaged: expected a list of names; take it from the run's checkpoint again"
            )
        return tuple(values)

    def prediction_files(self, outputs: Outputs) -> dict[str, bytes]:
        """The predictions of a whole evaluation as official scorers read them, by file name; most
        tasks have none."""
        return {}

    def predict(
        self, params: Any, inputs: Iterable[Any], top: int = 5, **options: Any
    ) -> list[list[Candidates]]:
        """A trained model's predictions, as a list; options as in `predict_stream`.

        Returns:
            For each input, one list of candidates per prediction: a text with two masks has two.

        Raises:
            RunError, DataError: an input cannot be read, or does not suit this model.
        """
        predictions = []
        for answer in self.predict_stream(params, inputs, top, **options):
            if answer.error:
                raise answer.error
            predictions.append(answer.predictions)
        return predictions

    def predict_stream(
        self,
        params: Any,
        inputs: Iterable[Any],
        top: int = 5,
        batch_size: int = 32,
        truncate: bool = False,
    ) -> Iterator[Answer]:
        """Yields a trained model's answer to each input, in order; an input that cannot be read, or
        does not suit this model, has an error as its answer.

        Args:
            params: of the model.
            inputs: paths of files if `predicts_files`, else lines of text. Content in place of a
                path is allowed where a task says so. After `prediction.PAUSE` among them, all
                answers are given before the next is asked for.
            top: how many candidates.
            batch_size: inputs that the model reads at once.
            truncate: whether a text that is too long is cut.
        """
        return Stream(self, params, top, batch_size, truncate)(inputs)

    def prepare(self, given: Any, truncate: bool = False) -> Prepared:
        """An input of `predict_stream` as the model reads it. It is called in threads.

        Raises:
            RunError, DataError: it cannot be read, or does not suit this model.
        """
        raise RunError(f"the task {type(self).__name__} has no predictions for single inputs")

    def prediction_scores(self, params: Any, batch: Batch) -> jax.Array:
        """Logits of prepared examples, float32 [batch, predictions, names]; there may be more of
        both than are read."""
        raise ConfigError(
            f"the task {type(self).__name__} has `prepare` alone: define `prediction_scores` too"
        )

    @property
    def prediction_names(self) -> Sequence[str]:
        """What is ranked by `prediction_scores`, in their order."""
        return self.class_names

    def rank(self, params: Any, batch: Batch, top: int) -> Outputs:
        """What `read_answer` needs of a batch of prepared examples: here, the best probabilities
        and their indices."""
        scores = self.prediction_scores(params, batch)[..., : len(self.prediction_names)]
        values, indices = jax.lax.top_k(jax.nn.softmax(scores), min(top, scores.shape[-1]))
        return {"values": values, "indices": indices}

    def read_answer(self, prepared: Prepared, outputs: list[Outputs], top: int) -> list[Candidates]:
        """The predictions of an input; its context, if it has one, is how many there are."""
        name_of: Callable[[int], str] = self.prediction_names.__getitem__
        best = (
            outputs[0][part][: prepared.context or 1].tolist() for part in ("indices", "values")
        )
        return [
            [*zip(map(name_of, indices), values, strict=True)]
            for indices, values in zip(*best, strict=True)
        ]

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def compiled_rank(self, top: int) -> Callable[[Any, Batch], Outputs]:
        """`rank` as a compiled function of parameters and a batch."""
        return jax.jit(functools.partial(self.rank, top=top))

    def generate(self, params: Any, prompt: str, sampling: Sampling) -> GeneratedText:
        """What a trained model writes after a prompt.

        Raises:
            RunError: the prompt does not suit this model, or the task generates no text.
        """
        raise RunError(
            f"the task {self.config.task} does not continue texts: train with config.task=causal_lm"
        )

    def encode(self, inputs: Sequence[Any]) -> Any:
        """Inputs as `predict` takes them, as the arrays that `forward` reads."""
        raise RunError(f"the task {type(self).__name__} reads no single inputs: give arrays")

    def forward(self, params: Any, inputs: Any) -> jax.Array:
        """The logits of arrays, as `encode` makes them, in evaluation: a pure function."""
        return self.apply(params, inputs)

    def features(
        self, params: Any, inputs: Any, layers: Sequence[int] = (-1,), pool: str | None = None
    ) -> jax.Array:
        """The states of some layers (see `Encoder.states`) for the inputs of `forward`, side by
        side: [batch, tokens, channels]; with `pool`, "mean" or "cls", [batch, channels]."""
        return self._side_by_side(self.bind(params).states(inputs, layers), pool)

    def _side_by_side(
        self, states: list[jax.Array], pool: str | None, mask: jax.Array | None = None
    ) -> jax.Array:
        return jnp.concatenate(
            [pooled_states(state, pool, mask) if pool else state for state in states], axis=-1
        )

    def labelled(self, side: str) -> Any:
        """The examples of a side as evaluation reads them, with their "label"."""
        return self.examples(side)

    @classmethod
    def row(
        cls, config: ConfigDict, inputs: Sequence[Any], label: Any, path: str
    ) -> dict[str, Any]:
        """An example that a program gives, its inputs and its label or None, as a JSON row of the
        data that the task reads; `path`, without a suffix, is where it may write a file that the
        row names.

        Raises:
            DataError, RunError: it does not suit the task.
        """
        raise RunError(f"the task {cls.__name__} takes no examples from a program: give a path")

    def init(self, key: jax.Array) -> Any:
        """Fresh parameters as a nested dict; traceable."""
        return nnx.to_pure_dict(nnx.state(self.module(nnx.Rngs(key)), nnx.Param))

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def shapes(self) -> Any:
        """Shapes and types of the parameters, a nested dict."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def bind(self, params: Any) -> Any:
        """The model with the given parameters."""
        return nnx.merge(nnx.graphdef(self._abstract_module), params)

    def apply(self, params: Any, *inputs: Any) -> Any:
        """Calls the model with the given parameters."""
        return self.bind(params)(*inputs)

    @functools.cached_property
    def _abstract_module(self) -> nnx.Module:
        return nnx.eval_shape(lambda: self.module(nnx.Rngs(0)))

    def param_metadata(self) -> dict[str, parameters.ParamMetadata]:
        """Path of each parameter -> how it is sharded, decayed and resized, and its layers."""
        return parameters.metadata(self._abstract_module)

    def data_notes(self) -> Iterator[str]:
        """Lines on the data that are said before they are read, and warnings when they are.

        Raises:
            DataError: the data cannot be what the user meant.
        """
        return iter(())

    def notes(self) -> list[str]:
        """Warnings about the config at the start of a run, a line each."""
        return []

    def spec(self) -> Any:
        """The spec of the blocks that the config describes.

        Raises:
            ValueError: its options contradict each other.
        """
        if self.config.model.dtype == "float64" and not jax.config.read("jax_enable_x64"):
            raise ValueError(
                "model.dtype is 'float64': set JAX_ENABLE_X64=1 in the environment as well"
            )
        block = blocks.find(self.config.model.block)
        return block.spec(
            length=self.length, **{name: self.config.model[name] for name in options_of(block.Spec)}
        )

    def stacks(self, params: Any) -> list[blocks.Block]:
        """The stacked blocks of the model's encoder, first layers first, each parameter's leading
        axis the layer."""
        return find_encoder(self.bind(params)).stacks

    def evaluation_batch_size(self, shares: int) -> int:
        """Examples of an evaluation batch, over all hosts: not more than are held out, in even
        shares."""
        whole = -(-max(1, self.evaluation_examples()) // shares) * shares
        return min(self.config.eval.batch_size or self.config.batch_size, whole)


def model_keys(batch: Batch) -> jax.Array:
    """The random keys of a batch's examples for dropout and stochastic depth, not the keys that
    masking uses."""
    return jax.vmap(lambda key: jax.random.fold_in(key, 1 << 16))(batch["key"])


def weighted_sum(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(sum, weight) in float32."""
    weights = weights.astype(jnp.float32)
    return (values.astype(jnp.float32) * weights).sum(), weights.sum()
