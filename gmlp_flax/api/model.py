"""A model to use in Python: predictions, logits, features, and its parts."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
import tqdm
from flax import nnx

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.data.images.folders import SUFFIXES
from gmlp_flax.errors import DataError, RunError, did_you_mean
from gmlp_flax.io import files, json_files
from gmlp_flax.models import parameters
from gmlp_flax.options import options_of
from gmlp_flax.tasks.base import Candidates
from gmlp_flax.tasks.generation import Sampling
from gmlp_flax.tasks.vocabulary import NO_TEXT, StandInTokenizer
from gmlp_flax.training.loading import Trained, require_trained
from gmlp_flax.training.partition import Partition

Predictions = list[list[Candidates]]
POOLS = ("mean", "cls")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Model(Trained):
    """A model with its parameters, and its tokenizer or its transform of images; `create` and
    `load` make one.

    It can be pickled and copied. Its methods do not change it.

    Attributes:
        config: what it was made from, every key of it.
        params: its parameters, a nested dict of arrays: of a run that kept their running mean, that
            mean.
        step: how many steps it was trained.
        task: its task: data, loss and metrics.
        partition: the devices that hold the parameters.
    """

    @property
    def module(self) -> nnx.Module:
        """The model as a Flax NNX module of its own, which training may change; this model keeps
        its parameters."""
        return self.task.bind(self.params)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of a model of text; None for images.

        Raises:
            RunError: the model was created without one.
        """
        tokenizer = getattr(self.task, "tokenizer", None)
        if isinstance(tokenizer, StandInTokenizer):
            raise RunError(NO_TEXT)
        return tokenizer

    @property
    def transform(self) -> Callable[[Any], np.ndarray] | None:
        """The preprocessing of an image classifier, as in evaluation: the path of a file, a Pillow
        image or an array to uint8 [height, width, channels]; None for text."""
        return (lambda image: self.task.encode([image])[0]) if self.task.predicts_files else None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of a classifier's classes; () for other models."""
        return tuple(self.task.class_names)

    def function(self) -> Callable[[Any, Any], jax.Array]:
        """The pure function (params, inputs) -> logits, in evaluation, to jit, grad and vmap;
        inputs are arrays as in `logits`, the leading axis the example, and images numbers from 0 to
        255."""
        return self.task.forward

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
        return self._forward(self.params, self._arrays(inputs))

    def features(
        self, inputs: Any, layers: Sequence[int] = (-1,), pool: Literal["mean", "cls"] | None = None
    ) -> jax.Array:
        """The states of the encoder, each through its final norm, in the compute type.

        Args:
            inputs: as in `logits`.
            layers: of which layers, from 0, or from the end; their states lie side by side along
                the channels.
            pool: "mean", over all tokens but padding; "cls", the first token; None for all tokens.

        Returns:
            [batch, tokens, channels], or [batch, channels] if pooled; channels are d_model times
            the number of layers.

        Raises:
            RunError, DataError: there is no such layer or pool; or as in `logits`.
        """
        if pool not in (None, *POOLS):
            raise RunError(f"pool is {pool!r}: expected 'mean', 'cls' or None")
        depth, numbers = (
            self.config.model.layers,
            tuple(layers) if isinstance(layers, Iterable) else (layers,),
        )
        if not numbers or not {*numbers} <= {*range(-depth, depth)}:
            raise RunError(
                f"layers is {layers!r}: expected some of {-depth} to {depth - 1}, negative from the end"
            )
        return self._features(self.params, self._arrays(inputs), numbers, pool)

    def predict(
        self, inputs: Any, top: int = 5, *, batch_size: int = 32, progress: bool = False
    ) -> Predictions | dict[str, list[Candidates]]:
        """What the model predicts.

        Args:
            inputs: one input or any number of them. A masked language model takes text with one or
                more [MASK]; a causal one any text; a classifier of text a sentence or, with a tab
                between them, a pair; a model that answers questions a question, a tab and a
                passage. A classifier of images takes paths of files, Pillow images and arrays; or a
                folder, or a glob pattern, of files.
            top: how many candidates.
            batch_size: inputs that the model reads at once.
            progress: whether to show a bar on standard error.

        Returns:
            For each input, one list of (name, probability) per prediction in it, the best first:
            text with two [MASK] has two lists. For a folder or a pattern, a dict of these by path.

        Raises:
            RunError, DataError: an input cannot be read, or does not suit this model.
        """
        require_counts(top=top, batch_size=batch_size)
        paths = None
        if self.task.predicts_files and isinstance(inputs, str | os.PathLike):
            name = os.fspath(inputs)
            paths = None if (found := files.expand(name, SUFFIXES)) == [name] else found
        with tqdm.tqdm(
            self._listed(inputs) if paths is None else paths, unit=" inputs", disable=not progress
        ) as bar:
            predictions = self.task.predict(self.params, bar, top, batch_size=batch_size)
        return predictions if paths is None else dict(zip(paths, predictions, strict=True))

    def generate(self, texts: str | Sequence[str], **options: Any) -> list[str]:
        """How a causal language model continues texts.

        Args:
            texts: one, or a list.
            options: tokens, temperature, top_k, top_p and seed of `Sampling`.

        Returns:
            What follows each text.

        Raises:
            RunError: the model is not causal, a text has a [MASK], or an option has a value that
                makes no sense.
        """
        known = options_of(Sampling)
        if unknown := [name for name in options if name not in known]:
            raise RunError(
                f"generate has no option {unknown[0]!r}; {did_you_mean(unknown[0], known)}"
            )
        options = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in options.items()
        }
        return [
            self.task.generate(self.params, text, Sampling(**options)).text
            for text in self._listed(texts)
        ]

    def __repr__(self) -> str:
        model, count = self.config.model, parameters.count(self.params)
        return f"Model({model.block}, {self.config.task}, {count:,} parameters, {model.dtype}, step {self.step})"

    def __reduce__(self):
        params = jax.tree.map(np.asarray, self.params)
        return restore, (config_lib.to_json(self.config), self.task.assets(), self.step, params)

    @functools.cached_property
    def _forward(self) -> Callable:
        return jax.jit(self.task.forward)

    @functools.cached_property
    def _features(self) -> Callable:
        return jax.jit(self.task.features, static_argnums=(2, 3))

    def _arrays(self, inputs: Any) -> Any:
        """The arrays that the model reads: `inputs` itself, or what it makes of things to
        predict."""
        if isinstance(inputs, Mapping):
            known = {"tokens", "segments"} & {*self.task.example_shapes()}
            if {*inputs} != known or len(known) < 2:
                expected = "tokens and segments" if len(known) == 2 else "an array"
                raise DataError(
                    f"inputs is a dict of {', '.join(map(str, inputs))}: expected {expected}"
                )
            return {name: _readable(self.task, array) for name, array in inputs.items()}
        if getattr(inputs, "ndim", 0) == (4 if self.transform else 2):
            return _readable(self.task, inputs)
        if not (given := [*self._listed(inputs)]):
            raise DataError("there are no inputs: give one or more")
        return self.task.encode(given)

    def _listed(self, inputs: Any) -> Iterable[Any]:
        """Some inputs, of one too: a text, a path, a Pillow image, or an array of one image. Raises
        DataError for what is no text, if the model reads text."""
        text = self.tokenizer is not None
        one = isinstance(inputs, str | bytes | os.PathLike | Mapping) or not isinstance(
            inputs, Iterable
        )
        given: Any = (
            [inputs]
            if one or getattr(inputs, "ndim", 1) in ((0,) if text else (0, 2, 3))
            else inputs
        )
        given = [*given] if text else given
        if text and (wrong := [one for one in given if not isinstance(one, str)]):
            raise DataError(f"an input is {type(wrong[0]).__name__}: expected text, as str")
        return given


def require_counts(**options: Any) -> None:
    """Raises RunError, with the name, unless all options are whole numbers from 1."""
    for name, value in options.items():
        if not isinstance(value, int | np.integer) or value < 1:
            raise RunError(f"{name} is {value!r}: expected a whole number from 1")


def require_model(model: Any) -> None:
    """Raises RunError unless it is a model of `create` or `load`, with a tokenizer if it reads
    text."""
    require_trained(model)
    _ = model.tokenizer


def _readable(task: tasks.Task, inputs: Any) -> np.ndarray:
    """An array as `Task.forward` reads it. Raises DataError if it cannot, or would read it as
    another one, such as ids out of range, or images of other values than `predict` takes."""
    shapes, model, array = task.example_shapes(), task.config.model, np.asarray(inputs)
    fits, expected = True, ""
    if not array.size:
        raise DataError(f"there are no inputs in an array of {[*array.shape]}: give one or more")
    if "image" in shapes:
        whole, shape = array.dtype.kind in "iu", shapes["image"][0]
        expected = (
            f"{['batch', *shape]}, whole numbers 0 to 255 or floats 0 to 1, or a list of images"
        )
        fits = array.shape[1:] == shape and array.dtype.kind not in "cOSU"
        fits = fits and 0 <= array.min() <= array.max() <= (255 if whole else 1)
        array = array if whole or not fits else np.float32(255) * array.astype(np.float32)
    elif "vocab_size" in model:
        fits = np.issubdtype(array.dtype, np.integer) and task.spec().supports_length(
            array.shape[-1]
        )
        fits = fits and array.min(initial=0) >= 0 and array.max(initial=0) < model.vocab_size
        expected = (
            f"whole numbers from 0 to {model.vocab_size - 1}, of {task.length} tokens or fewer"
        )
    if not fits:
        raise DataError(
            f"inputs is an array of {array.dtype} {[*array.shape]}: expected {expected}"
        )
    return array


def place(task: tasks.Task, params: Any, step: int = 0, mesh: Any = None) -> Model:
    """A model of a task with parameters, which are put on the devices: all of them, or as `mesh` of
    `load` says."""
    partition = Partition.make(mesh).for_model(task.param_metadata())
    return Model(
        task.config,
        task,
        step,
        jax.device_put(params, partition.shardings(params)),
        None,
        partition,
    )


def restore(config: str, files: Files, step: int, params: Any) -> Model:
    """The model that a pickle holds: the text of its config, the files of its task, its step and
    its parameters."""
    own = config_lib.from_dict(json_files.loads(config), "the pickled model")
    return place(tasks.find(own.task).without_data(own, files), params, step)
