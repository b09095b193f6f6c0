"""Image classification, as the paper does it on ImageNet (section 3)."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data.classes import CLASSES_FILE, NAMES_FILE
from gmlp_flax.data.images import decoding
from gmlp_flax.data.images.readable import UNREAD
from gmlp_flax.data.images.stores import SUFFIXES
from gmlp_flax.errors import ConfigError, DataError
from gmlp_flax.io import files as io_files
from gmlp_flax.models.image import POOLS, STEMS, ImageClassifier, token_count
from gmlp_flax.options import AT_LEAST_0, SHARE, SHARE_ABOVE_0, SHARE_BELOW_1, SIZE, Option, Range
from gmlp_flax.tasks.base import (
    Baseline,
    Batch,
    Files,
    Inheritance,
    Outputs,
    Shapes,
    Sums,
    Task,
    Totals,
    means,
    model_keys,
    weighted_sum,
)
from gmlp_flax.tasks.data.base import names_in
from gmlp_flax.tasks.data.images import ImageData, evaluation_example
from gmlp_flax.tasks.inference.prediction import Answer, Predictor, Prepared, shown
from gmlp_flax.tasks.mixing import (
    blend_pixels,
    keep_weights,
    mixed_targets,
    pair_keys,
    partners,
)

SIDE = Range("from 1 to 65,536", 1, 2**16)  # pixels
IMAGENET_CLASSES = 1000


class ImagePredictor(Predictor):
    """Answers to images: paths of files, Pillow images, or arrays of pixels."""

    usage = "IMAGE ..."
    suffixes = SUFFIXES
    array_rank = 4

    @property
    def names(self) -> Sequence[str]:
        """See `Predictor`: what to show people for each class."""
        return self.task.names

    @functools.cached_property
    def transform(self) -> Callable[[Any], np.ndarray]:
        """The preprocessing of an image, as in evaluation, to uint8 [height, width, channels].

        It raises DataError if a file is missing or does not decode, or an array is not an image.
        """
        config = self.task.config
        example = evaluation_example(config)

        def transform(image: Any) -> np.ndarray:
            """The pixels of an image, as the model reads them."""
            record = decoding.record_of(image, config.model.channels)
            return example(record)["image"]

        return transform

    def prepare(self, value: Any, truncate: bool = False) -> Prepared:
        """See `Predictor`; it raises as `transform` does."""
        pixels = self.transform(value)
        return Prepared([{"image": pixels}])

    def encode(self, inputs: Sequence[Any]) -> np.ndarray:
        """See `Predictor`: uint8 [batch, height, width, channels], as evaluation sees the
        images."""
        images = [self.transform(image) for image in inputs]
        return np.stack(images)

    def scores(self, params: Any, batch: Batch) -> jax.Array:
        """See `Predictor`: one prediction for each image."""
        scores = self.task.apply(params, batch["image"])
        return scores[:, None]

    def listed(self, inputs: Any) -> Any:
        """See `Predictor`: an array of two or three axes is one image."""
        is_array_of_one = getattr(inputs, "ndim", None) in (0, 2, 3)
        if is_array_of_one:
            return [inputs]
        return super().listed(inputs)

    def paths_in(self, inputs: Any) -> list[str] | None:
        """See `Predictor`: the images in a folder, or of a pattern."""
        if not isinstance(inputs, str | os.PathLike):
            return None
        name = os.fspath(inputs)
        paths = io_files.expand(name, SUFFIXES)
        is_one_file = paths == [name]
        return None if is_one_file else paths

    def inputs_of_file(
        self, path: str, read_lines: Callable[[str, BinaryIO], Iterator[Any]]
    ) -> Iterator[Any]:
        """See `Predictor`: the file itself."""
        yield path

    def format(self, answer: Answer) -> str:
        """See `Predictor`: in one line."""
        candidates = answer.predictions[0]
        return f"{answer.input}: {shown(candidates)}"


class ImageClassification(Task):
    """Predicts the class of an image; batches carry uint8 images, which the step normalizes on the
    device.

    Attributes:
        classes: names of the classes in the order of their labels; without files, ImageNet's
            numbers.
    """

    options = {
        "model.image_size": Option(
            (224, 224), "height and width of images", SIDE, inherited=True, scaled=True
        ),
        "model.patch_size": Option((16, 16), "height and width of a patch", SIDE),
        "model.channels": Option(3, "3 for RGB, 1 for grey", (1, 3), inherited=True),
        "model.stem": Option(
            "patches",
            "a linear layer of patches; or a table of 256 vectors, for single grey pixels as "
            "tokens",
            STEMS,
        ),
        "model.pool": Option(
            "mean", "the head reads the mean of the tokens, or a cls token (ViT)", POOLS
        ),
        "model.pre_logits": Option(
            False, "a tanh layer between pooling and the head, as the first ViTs have"
        ),
        "data.min_scale": Option(
            0.08, "least share of an image that a training crop covers; 1: no crop", SHARE
        ),
        "data.eval_crop": Option(
            0.875,
            "share of the resized image's side that evaluation crops; 1: all of it",
            SHARE_ABOVE_0,
        ),
        "data.transform": Option(
            "exact",
            "one resampling of the exact centre; or timm's pixels, scaled, then cropped",
            ("exact", "timm"),
            inherited=True,
        ),
        "data.max_value": Option(
            65_535,
            "the 16-bit pixel that is white: 4,095 for sensors of 12 bits",
            Range("from 1 to 65,535", 1, 65_535),
        ),
        "data.flip": Option(True, "mirror half of the training images"),
        "data.mean": Option(
            (0.5, 0.5, 0.5), "subtracted from each channel of pixels in 0 to 1", inherited=True
        ),
        "data.std": Option(
            (0.5, 0.5, 0.5),
            "divides each channel afterwards",
            Range("at least 1e-6", 1e-6),
            inherited=True,
        ),
        "data.class_map": Option(
            "",
            "for folders called 0, 1, ...: a file whose lines are these classes in order, or 'run' "
            "for the run's list",
        ),
        "augment.auto": Option(
            "none",
            "AutoAugment's ImageNet policy (the paper's), RandAugment (DeiT's), or none of them",
            ("none", "autoaugment", "randaugment"),
        ),
        "augment.randaugment_layers": Option(
            2,
            "operations drawn per image; each is applied to half of the images",
            Range("from 1 to 100", 1, 100),
        ),
        "augment.randaugment_magnitude": Option(
            9.0, "mean severity, 0 to 10", Range("0 to 10", 0, 10)
        ),
        "augment.randaugment_std": Option(0.5, "standard deviation of the severity", AT_LEAST_0),
        "augment.color_jitter": Option(
            0.0,
            "brightness, contrast, saturation by 1 +- this at most, if auto is none",
            AT_LEAST_0,
        ),
        "augment.erasing": Option(
            0.0, "probability that noise replaces a rectangle (DeiT: 0.25)", SHARE
        ),
        "augment.mixup": Option(
            0.0, "alpha of mixup (paper: 0.8); 0: none", AT_LEAST_0, softens_targets=True
        ),
        "augment.cutmix": Option(
            0.0, "alpha of CutMix (paper: 1.0); 0: none", AT_LEAST_0, softens_targets=True
        ),
        "augment.switch": Option(0.5, "probability of CutMix if both are on", SHARE),
        "augment.mixing": Option(
            "batch",
            "one draw of mixup or CutMix for a whole batch, as DeiT, or one per pair",
            ("batch", "pair"),
        ),
        "augment.repeats": Option(
            1, "times that an epoch holds each image, each augmented again (DeiT: 3)", SIZE
        ),
        "optimizer.label_smoothing": Option(
            0.0,
            "share of the target spread over all classes",
            SHARE_BELOW_1,
            softens_targets=True,
        ),
        "eval.real_labels": Option(
            "", "ReaL's JSON file of labels for ImageNet's validation images"
        ),
    }
    Data: ClassVar = ImageData
    Predictor: ClassVar = ImagePredictor
    inheritance = Inheritance(heads={CLASSES_FILE: "head/"}, optional=(NAMES_FILE,))
    best = ("top1", "max")
    hub_task = "image-classification"
    percent = dict.fromkeys(("accuracy", "top1", "top5", "real"), 100.0)
    unit = "images"

    def __init__(self, config: ConfigDict, files: Files = MappingProxyType({})):
        super().__init__(config, files)
        numbers = range(IMAGENET_CLASSES)
        self.classes = tuple(map(str, numbers))
        if CLASSES_FILE in files:
            content = files[CLASSES_FILE]
            self.classes = names_in(content, CLASSES_FILE)

    @property
    def class_names(self) -> Sequence[str]:
        """See `Task`."""
        return self.classes

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """What to show people for each class: the words among the files, else the class itself."""
        if NAMES_FILE not in self.files:
            return self.classes
        content = self.files[NAMES_FILE]
        names = names_in(content, NAMES_FILE)
        count = len(self.classes)
        if len(names) != count:
            raise DataError(
                f"{NAMES_FILE} has {len(names)} names for {count} classes: remove it, or fix it"
            )
        return names

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        model = config.model
        mixes = config.augment.mixup or config.augment.cutmix
        microbatch_size = config.batch_size // config.optimizer.grad_accum_steps
        if mixes and microbatch_size % 2:
            raise ConfigError(
                f"config.batch_size is {config.batch_size}: mixup and CutMix need even microbatches"
            )
        if model.get("causal") and model.pool == "cls":
            raise ConfigError(
                "config.model.pool is 'cls', and the model is causal: it sees no patch; set it to "
                "'mean'"
            )
        is_grey = model.channels == 1 and model.patch_size == (1, 1)
        if model.stem == "table" and (mixes or not is_grey):
            raise ConfigError(
                "config.model.stem is 'table', a vector for each grey value: set "
                "config.model.channels=1 and config.model.patch_size=(1,1), and set "
                "config.augment.mixup=0 and cutmix=0"
            )

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """See `Task`."""
        model = self.config.model
        data = self.config.data
        spec = self.spec()
        classes = len(self.classes)
        names = ("image_size", "patch_size", "channels", "pool", "pre_logits", "stem")
        options = {name: model[name] for name in names}
        return ImageClassifier(spec, rngs, classes=classes, mean=data.mean, std=data.std, **options)

    def example_shapes(self) -> Shapes:
        """See `Task`."""
        model = self.config.model
        shape = (*model.image_size, model.channels)
        image = (shape, jnp.uint8)
        label = ((), jnp.int32)
        return {"image": image, "label": label}

    @property
    def length(self) -> int:
        """See `Task`: patches, and a cls token if there is one."""
        model = self.config.model
        return token_count(model.image_size, model.patch_size, model.pool)

    def as_inputs(self, array: np.ndarray) -> np.ndarray:
        """See `Task`: images of whole numbers from 0 to 255, or of floats from 0 to 1, which are
        scaled."""
        shapes = self.example_shapes()
        image_shape, _ = shapes["image"]
        kind = array.dtype.kind
        is_image = array.shape[1:] == image_shape and kind not in "cOSU"
        white = 255 if kind in "iu" else 1
        if is_image and 0 <= array.min() <= array.max() <= white:
            scaled = self.scaled_inputs(array)
            return np.asarray(scaled)
        shape = list(array.shape)
        expected = ["batch", *image_shape]
        raise DataError(
            f"inputs is an array of {array.dtype} {shape}: expected {expected}, whole numbers 0 "
            "to 255 or floats 0 to 1, or a list of images"
        )

    def scaled_inputs(self, inputs: Any) -> Any:
        """See `Task`: whole numbers are from 0 to 255, and floats from 0 to 1."""
        if jnp.issubdtype(inputs.dtype, jnp.integer):
            return inputs
        floats = jnp.asarray(inputs, jnp.float32)
        return 255 * floats

    def mix(self, batch: Batch, key: jax.Array) -> Batch:
        """Mixup or CutMix: adds "share", how much of its own label an example keeps, and "other",
        the label of its partner."""
        augment = self.config.augment
        images = batch["image"]
        labels = batch["label"]
        if not (augment.mixup or augment.cutmix):
            return batch
        keys = key[None] if augment.mixing == "batch" else pair_keys(batch["key"])
        size = images.shape[1:-1]
        pixel_weights, share = keep_weights(
            keys,
            size,
            mixup=augment.mixup,
            cutmix=augment.cutmix,
            switch=augment.switch,
        )
        return {
            **batch,
            "image": blend_pixels(images, pixel_weights),
            "other": partners(labels),
            "share": jnp.broadcast_to(share, labels.shape),
        }

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """Cross-entropy with smoothed labels: "image" uint8 [batch, height, width, channels],
        "label" int32 [batch].

        Targets of mixed images are mixed as well, and accuracy counts the label with the larger
        share.
        """
        labels = batch["label"]
        keys = model_keys(batch)
        logits = self.apply(params, batch["image"], keys)
        classes = logits.shape[-1]
        targets = jax.nn.one_hot(labels, classes)
        if "share" in batch:
            targets, labels = mixed_targets(batch, targets)
        smoothing = self.config.optimizer.label_smoothing
        targets = optax.smooth_labels(targets, smoothing)
        losses = optax.softmax_cross_entropy(logits, targets)
        predicted = logits.argmax(-1)
        hits = predicted == labels
        ones = jnp.ones(losses.shape)
        sums = {
            "loss": weighted_sum(losses, ones),
            "accuracy": weighted_sum(hits, ones),
        }
        loss, _ = sums["loss"]
        return loss, sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """Cross-entropy, top-1 and top-5 hits of a batch as in `loss`, with "weight" float32
        [batch].

        Images with the label UNREAD count only as examples. With "real" int32 [batch, labels],
        padded with -1, it also counts the images with ReaL labels, and among them those whose first
        class is one of their labels.
        """
        labels = batch["label"]
        weights = batch["weight"]
        logits = self.apply(params, batch["image"])
        classes = logits.shape[-1]
        is_read = labels != UNREAD
        read_weights = weights * is_read
        targets = jnp.maximum(labels, 0)
        ranked = min(5, classes)
        _, best = jax.lax.top_k(logits, ranked)
        hits = best == labels[:, None]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        zeros = jnp.zeros(classes)
        class_counts = zeros.at[targets].add(read_weights)
        sums = {
            "loss": weighted_sum(losses, read_weights),
            "top1": weighted_sum(hits[:, 0], read_weights),
            "top5": weighted_sum(hits.any(-1), read_weights),
            "examples": weighted_sum(is_read, weights),
            "classes": (class_counts, read_weights.sum()),
        }
        if "real" in batch:
            predicted = best[:, :1]
            sums["real"] = _real_hits(batch["real"], predicted, read_weights)
        return sums, {}

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """ReaL accuracy is among them if its labels are given."""
        real = ("real",) if self.config.eval.real_labels else ()
        return ("top1", "top5", "loss", *real)

    def summarize(self, sums: Totals, outputs: Outputs, data: Any) -> dict[str, float]:
        """Top-1, top-5, ReaL accuracy and loss of the images that could be read, and the number
        that could not.

        Raises:
            DataError: more images cannot be read, over all hosts, than config.data.max_bad_records
                allows; or no image has a ReaL label.
        """
        read_weight, example_weight = sums["examples"]
        read = int(read_weight)
        examples = int(example_weight)
        unread = examples - read
        limit = self.config.data.max_bad_records
        if unread > limit or not read:
            raise DataError(
                f"{unread} of {examples} held-out images cannot be read "
                f"(config.data.max_bad_records={limit}; standard error names them): fix them or "
                "raise the limit"
            )
        if "real" in sums:
            self._require_real_labels(sums)
        names = [name for name in ("top1", "top5", "real", "loss") if name in sums]
        metrics = means(sums, names)
        metrics["examples"] = examples
        if unread:
            metrics["unread"] = unread
        return metrics

    def _require_real_labels(self, sums: Totals) -> None:
        """Raises DataError if no image has a ReaL label."""
        _, labelled_images = sums["real"]
        if not labelled_images:
            path = self.config.eval.real_labels
            raise DataError(f"{path} has no label for any held-out image; give ReaL's file")

    def baselines(self, sums: Totals, data: Any) -> list[Baseline]:
        """One class for all images: the most frequent one of the held-out data."""
        counts, read = sums["classes"]
        most_frequent = float(max(counts))
        top1 = most_frequent / read
        return [Baseline("the most frequent class", {"top1": top1})]


def _real_hits(
    real: jax.Array, predicted: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Hits of predicted classes [batch, 1] on ReaL labels [batch, labels], of images with some."""
    is_label = real >= 0
    has_labels = is_label.any(-1)
    is_equal = predicted == real
    is_hit = is_equal.any(-1)
    label_weights = weights * has_labels
    return weighted_sum(is_hit, label_weights)
