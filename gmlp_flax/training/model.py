"""A model to use in Python: predictions, logits, features, and its parts."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
import tqdm
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.errors import DataError, RunError, did_you_mean
from gmlp_flax.io import json_files
from gmlp_flax.models import parameters
from gmlp_flax.options import options_of
from gmlp_flax.tasks.base import Task
from gmlp_flax.tasks.inference.prediction import Candidates, GeneratingPredictor, Settings
from gmlp_flax.tasks.inference.sampling import Sampling
from gmlp_flax.tasks.text import NO_TEXT, StandInTokenizer
from gmlp_flax.training.partition import Partition

Predictions = list[list[Candidates]]
POOLS = ("mean", "cls")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A model with its parameters, and its tokenizer or its transform of images;
    `gmlp_flax.create` and `gmlp_flax.load` make one.

    It can be pickled and copied. Its methods do not change it.

    Attributes:
        task: its task: model, loss and metrics.
        params: its parameters, a nested dict of arrays. If the run kept their running mean, they
            are the mean.
        partition: the devices that hold the parameters.
        step: how many steps it was trained.
        unaveraged: the parameters themselves, on request, if `params` is the running mean; else
            None.
        folder: of its run, or of the exported model; "" for none.
    """

    task: Task
    params: Any
    partition: Partition
    step: int = 0
    unaveraged: Any = None
    folder: str = ""

    @property
    def config(self) -> ConfigDict:
        """The config that it was made from, with every key."""
        return self.task.config

    @property
    def module(self) -> nnx.Module:
        """The model as a separate Flax NNX module, which training may change. This model keeps its
        parameters."""
        return self.task.bind(self.params)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of a model of text; None for images.

        Raises:
            RunError: the model was created without one.
        """
        tokenizer = self.task.tokenizer
        if isinstance(tokenizer, StandInTokenizer):
            raise RunError(NO_TEXT)
        return tokenizer

    @property
    def predictor(self) -> Any:
        """How it answers single inputs, of the type `tasks.inference.prediction.Predictor`."""
        return self.task.predictor

    @property
    def transform(self) -> Callable[[Any], np.ndarray] | None:
        """The preprocessing of an image classifier, as in evaluation: the path of a file, a Pillow
        image or an array to uint8 [height, width, channels]; None for text."""
        return self.predictor.transform

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of a classifier's classes; () for other models."""
        return tuple(self.task.class_names)

    def function(self) -> Callable[[Any, Any], jax.Array]:
        """The pure function (params, inputs) -> logits, in evaluation, to jit, grad and vmap.
        Inputs are arrays as in `logits`, with the example as the leading axis. Nothing is checked:
        images of floats must be from 0 to 1, images of whole numbers from 0 to 255."""
        task = self.task

        def forward(params: Any, inputs: Any) -> jax.Array:
            """The logits."""
            scaled = task.scaled_inputs(inputs)
            return task.forward(params, scaled)

        return forward

    def logits(self, inputs: Any) -> jax.Array:
        """The logits, float32: [batch, classes] of a classifier, [batch, tokens, vocabulary] of a
        language model, [batch, tokens, 2] (start, end) of a model that answers questions.

        Args:
            inputs: an array, images [batch, height, width, channels], whole numbers from 0 to 255
                or floats from 0 to 1, or token ids int [batch, tokens]; or a list as `predict`
                takes.

        Raises:
            RunError, DataError: an input cannot be read, or does not suit this model.
        """
        arrays = self._arrays(inputs)
        return self._forward(self.params, arrays)

    def features(
        self, inputs: Any, layers: Sequence[int] = (-1,), pool: Literal["mean", "cls"] | None = None
    ) -> jax.Array:
        """The states of the encoder, each through its final norm, in the compute type.

        Args:
            inputs: as in `logits`.
            layers: numbers of layers, from 0, or negative from the end. Their states lie side by
                side along the channels.
            pool: "mean" over all tokens except padding, 0 if there are no others; "cls" for the
                first token; None for all tokens.

        Returns:
            [batch, tokens, channels], or [batch, channels] if pooled; channels are d_model times
            the number of layers.

        Raises:
            RunError, DataError: there is no such layer or pool; or as in `logits`.
        """
        if pool not in (None, *POOLS):
            raise RunError(f"pool is {pool!r}: expected 'mean', 'cls' or None")
        numbers = self._layer_numbers(layers)
        arrays = self._arrays(inputs)
        return self._features(self.params, arrays, numbers, pool)

    def predict(
        self, inputs: Any, top: int = 5, *, batch_size: int = 32, progress: bool = False
    ) -> Predictions | dict[str, list[Candidates]]:
        """What the model predicts.

        Args:
            inputs: one input or any number of them. A masked language model takes text with one or
                more [MASK]; a causal one any text; a classifier of text a sentence or, with a tab
                between them, a pair; a model that answers questions a question, a tab and a
                passage. A classifier of images takes paths of files, Pillow images and arrays, or
                a folder or a glob pattern of files.
            top: how many candidates.
            batch_size: inputs that the model reads at once.
            progress: whether to show a bar on standard error.

        Returns:
            For each input, one list of (name, probability) per prediction in it, the best first.
            A text with two [MASK] has two lists. For a folder or a pattern, a dict of these by path.

        Raises:
            RunError, DataError: an input cannot be read, or does not suit this model.
        """
        require_counts(top=top, batch_size=batch_size)
        predictor = self.predictor
        paths = predictor.paths_in(inputs)
        listed = predictor.listed(inputs) if paths is None else paths
        settings = Settings(top, batch_size)
        with tqdm.tqdm(listed, unit=" inputs", disable=not progress) as bar:
            predictions = predictor.predict(self.params, bar, settings)
        if paths is None:
            return predictions
        by_path = zip(paths, predictions, strict=True)
        return dict(by_path)

    def generate(self, texts: str | Sequence[str], **options: Any) -> list[str]:
        """How a causal language model continues texts.

        Args:
            texts: one, or a list.
            options: tokens, temperature, top_k, top_p and seed of `Sampling`.

        Returns:
            What follows each text.

        Raises:
            RunError: the model is not causal, a text has a [MASK], or an option has an invalid
                value.
        """
        predictor = self.predictor
        if not isinstance(predictor, GeneratingPredictor):
            raise RunError(
                f"the task {self.config.task} does not continue texts: train with "
                "config.task=causal_lm"
            )
        sampling = _sampling(options)
        continuations = []
        for prompt in predictor.listed(texts):
            continuation = predictor.generate(self.params, prompt, sampling)
            continuations.append(continuation.text)
        return continuations

    def __repr__(self) -> str:
        model = self.config.model
        task = self.config.task
        count = parameters.count(self.params)
        return (
            f"Model({model.block}, {task}, {count:,} parameters, {model.dtype}, step {self.step})"
        )

    def __reduce__(self):
        config = config_lib.to_json(self.config)
        files = dict(self.task.files)
        params = jax.tree.map(np.asarray, self.params)
        arguments = (config, files, self.step, params)
        return restore, arguments

    @functools.cached_property
    def _forward(self) -> Callable:
        return jax.jit(self.task.forward)

    @functools.cached_property
    def _features(self) -> Callable:
        return jax.jit(self.task.features, static_argnums=(2, 3))

    def _layer_numbers(self, layers: Any) -> tuple[int, ...]:
        """The numbers of layers; raises RunError if there is no such layer."""
        depth = self.config.model.layers
        numbers = (layers,)
        if isinstance(layers, Iterable):
            numbers = tuple(layers)
        known = range(-depth, depth)
        are_known = all(number in known for number in numbers)
        if not numbers or not are_known:
            raise RunError(
                f"layers is {layers!r}: expected some of {-depth} to {depth - 1}, negative from "
                "the end"
            )
        return numbers

    def _arrays(self, inputs: Any) -> Any:
        """The arrays that the model reads: `inputs` themselves, or what `predict` would make of
        them."""
        if isinstance(inputs, Mapping):
            return self._named_arrays(inputs)
        predictor = self.predictor
        rank = getattr(inputs, "ndim", 0)
        if rank == predictor.array_rank:
            return self._array(inputs)
        listed = list(predictor.listed(inputs))
        if not listed:
            raise DataError("there are no inputs: give one or more")
        return predictor.encode(listed)

    def _named_arrays(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Tokens and segments, of a model that reads both."""
        both = {"tokens", "segments"}
        names_read = self.task.example_shapes().keys()
        reads_both = both <= names_read
        has_both = set(inputs) == both
        if not reads_both or not has_both:
            expected = "tokens and segments" if reads_both else "an array"
            names = ", ".join(map(str, inputs))
            raise DataError(f"inputs is a dict of {names}: expected {expected}")
        arrays = {}
        for name, values in inputs.items():
            arrays[name] = self._array(values)
        return arrays

    def _array(self, inputs: Any) -> np.ndarray:
        """An array as `Task.forward` reads it."""
        array = np.asarray(inputs)
        if not array.size:
            shape = list(array.shape)
            raise DataError(f"there are no inputs in an array of {shape}: give one or more")
        return self.task.as_inputs(array)


def _sampling(options: Mapping[str, Any]) -> Sampling:
    """How texts are continued, from the options of a program."""
    known = options_of(Sampling)
    values = {}
    for name, value in options.items():
        if name not in known:
            raise RunError(f"generate has no option {name!r}; {did_you_mean(name, known)}")
        if isinstance(value, np.generic):
            value = value.item()
        values[name] = value
    return Sampling(**values)


def require_counts(**options: Any) -> None:
    """Raises RunError, with the name, unless all options are whole numbers from 1."""
    for name, value in options.items():
        is_whole = isinstance(value, int | np.integer)
        is_count = is_whole and value >= 1
        if not is_count:
            raise RunError(f"{name} is {value!r}: expected a whole number from 1")


def require_model(model: Any) -> None:
    """Raises RunError unless it is a model of `load` or `create`."""
    if not isinstance(model, Model):
        raise RunError(
            f"the model is {model!r:.80}: expected what gmlp_flax.load or gmlp_flax.create gives"
        )


def require_tokenizer(model: Any) -> None:
    """Raises RunError unless it is a model of `load` or `create`, with a tokenizer if it reads
    text."""
    require_model(model)
    _ = model.tokenizer


def place(task: Task, params: Any, step: int = 0) -> Model:
    """A model of a task with parameters, which are copied to all devices."""
    metadata = task.param_metadata()
    mesh = Partition.make()
    partition = mesh.for_model(metadata)
    shardings = partition.shardings(params)
    on_devices = jax.device_put(params, shardings)
    return Model(task, on_devices, partition, step)


def restore(config: str, files: Files, step: int, params: Any) -> Model:
    """The model that a pickle holds: the text of its config, the files of its task, its step and
    its parameters."""
    values = json_files.loads(config)
    unresolved = config_lib.from_dict(values, "the pickled model")
    resolution = config_lib.resolve(unresolved)
    resolved = resolution.config
    kind = tasks.find(resolved.task)
    task = kind(resolved, files)
    return place(task, params, step)
