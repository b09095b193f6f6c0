"""Image classification, as the paper does it on ImageNet (section 3)."""

from __future__ import annotations

import collections
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data import embedded, pipeline
from gmlp_flax.data.fingerprints import Fingerprint, spread
from gmlp_flax.data.images import sources, views
from gmlp_flax.data.images.augment import Augmentation
from gmlp_flax.data.images.sources import UNREAD, ReadableExamples
from gmlp_flax.errors import ConfigError, DataError
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecords, decode_utf8
from gmlp_flax.models.image import POOLS, STEMS, ImageClassifier, token_count
from gmlp_flax.options import AT_LEAST_0, SHARE, SHARE_ABOVE_0, SHARE_BELOW_1, SIZE, Option, Range
from gmlp_flax.tasks import base, sides
from gmlp_flax.tasks.base import (
    Batch,
    Outputs,
    Shapes,
    Sums,
    Task,
    Totals,
    model_keys,
    weighted_sum,
)
from gmlp_flax.tasks.mixing import blend_pixels, own_weights, pair_keys, partners
from gmlp_flax.tasks.prediction import Prepared

CLASSES_FILE = "classes.json"
# words for people, in the order of the classes; converted weights have it
NAMES_FILE = "names.json"
_LOOKED_INTO, _FEW = 400, 64  # held-out images decoded at the start, on a disk and in a bucket
SIDE = Range("from 1 to 65,536", 1, 2**16)  # pixels


class ImageClassification(Task):
    """Predicts the class of an image; batches carry uint8 images, which the step normalises on the
    device."""

    options = {
        "model.image_size": Option((224, 224), "height and width of images", SIDE),
        "model.patch_size": Option((16, 16), "height and width of a patch", SIDE),
        "model.channels": Option(3, "3 for RGB, 1 for grey", (1, 3)),
        "model.stem": Option(
            "patches",
            "a linear layer of patches; or a table of 256 vectors, for single grey pixels as tokens",
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
        ),
        "data.flip": Option(True, "mirror half of the training images"),
        "data.mean": Option((0.5, 0.5, 0.5), "subtracted from each channel of pixels in 0 to 1"),
        "data.std": Option(
            (0.5, 0.5, 0.5), "divides each channel afterwards", Range("at least 1e-6", 1e-6)
        ),
        "data.class_map": Option(
            "",
            "for folders called 0, 1, ...: a file whose lines are these classes in order, or 'run' for the run's list",
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
        "augment.mixup": Option(0.0, "alpha of mixup (paper: 0.8); 0: none", AT_LEAST_0),
        "augment.cutmix": Option(0.0, "alpha of CutMix (paper: 1.0); 0: none", AT_LEAST_0),
        "augment.switch": Option(0.5, "probability of CutMix if both are on", SHARE),
        "augment.mixing": Option(
            "batch",
            "one draw of mixup or CutMix for a whole batch, as DeiT, or one per pair",
            ("batch", "pair"),
        ),
        "augment.repeats": Option(
            1, "times that an epoch holds each image, augmented anew (DeiT: 3)", SIZE
        ),
        "optimizer.label_smoothing": Option(
            0.0, "share of the target spread over all classes", SHARE_BELOW_1
        ),
        "eval.real_labels": Option(
            "", "ReaL's JSON file of labels for ImageNet's validation images"
        ),
    }
    best = ("top1", "max")
    hub_task = "image-classification"
    percent = dict.fromkeys(("accuracy", "top1", "top5", "real"), 100.0)
    unit = "images"
    predicts_files = True
    inherited_keys = (
        "data.mean",
        "data.std",
        "data.transform",
        "model.channels",
        "model.image_size",
    )
    heads = {CLASSES_FILE: "head/"}
    optional_assets = (NAMES_FILE,)

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """See `Task`."""
        names = ("image_size", "patch_size", "channels", "pool", "pre_logits", "stem")
        options = {name: self.config.model[name] for name in names}
        data, classes = self.config.data, len(self.classes)
        return ImageClassifier(
            self.spec(), rngs, classes=classes, mean=data.mean, std=data.std, **options
        )

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        mixes = config.augment.mixup or config.augment.cutmix
        if mixes and config.batch_size // config.optimizer.grad_accum_steps % 2:
            raise ConfigError(
                f"config.batch_size is {config.batch_size}: mixup and CutMix need even microbatches"
            )
        if config.model.get("causal") and config.model.pool == "cls":
            raise ConfigError(
                "config.model.pool is 'cls', and the model is causal: it sees no patch; set it to 'mean'"
            )
        is_grey = config.model.channels == 1 and config.model.patch_size == (1, 1)
        if config.model.stem == "table" and (mixes or not is_grey):
            raise ConfigError(
                "config.model.stem is 'table', a vector for each grey value: set config.model.channels=1 and "
                "config.model.patch_size=(1,1), and set config.augment.mixup=0 and cutmix=0"
            )

    @property
    def class_names(self) -> Sequence[str]:
        return self.classes

    @classmethod
    def without_data(
        cls,
        config: ConfigDict,
        files: Mapping[str, bytes] = MappingProxyType({}),
        classes: int = 1000,
    ) -> ImageClassification:
        """See `Task`; as many classes as ImageNet has, or another number."""
        task = cls(config, "", files)
        if CLASSES_FILE not in files:
            task.classes = tuple(map(str, range(classes)))
        return task

    def example_shapes(self) -> Shapes:
        model = self.config.model
        return {"image": ((*model.image_size, model.channels), jnp.uint8), "label": ((), jnp.int32)}

    @property
    def length(self) -> int:
        model = self.config.model
        return token_count(model.image_size, model.patch_size, model.pool)

    def mix(self, batch: Batch, key: jax.Array) -> Batch:
        """Mixup or CutMix: adds "share", how much of its own label an example keeps, and "other",
        its partner's."""
        augment, images, labels = self.config.augment, batch["image"], batch["label"]
        if not (augment.mixup or augment.cutmix):
            return batch
        keys = key[None] if augment.mixing == "batch" else pair_keys(batch["key"])
        options = {name: augment[name] for name in ("mixup", "cutmix", "switch")}
        own, share = own_weights(keys, images.shape[1:-1], **options)
        share = jnp.broadcast_to(share, labels.shape)
        return batch | {
            "image": blend_pixels(images, own),
            "other": partners(labels),
            "share": share,
        }

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """Cross-entropy with smoothed labels: "image" uint8 [batch, height, width, channels],
        "label" int32 [batch].

        Targets of mixed images are mixed as well, and accuracy counts the label with the larger
        share.
        """
        labels, logits = batch["label"], self.apply(params, batch["image"], model_keys(batch))
        hot = functools.partial(jax.nn.one_hot, num_classes=logits.shape[-1])
        targets = hot(labels)
        if "share" in batch:
            share, other = batch["share"], batch["other"]
            targets = share[:, None] * targets + (1 - share)[:, None] * hot(other)
            labels = jnp.where(share < 0.5, other, labels)
        targets = optax.smooth_labels(targets, self.config.optimizer.label_smoothing)
        ones = jnp.ones(logits.shape[:1])
        sums = {
            "loss": weighted_sum(optax.softmax_cross_entropy(logits, targets), ones),
            "accuracy": weighted_sum(logits.argmax(-1) == labels, ones),
        }
        return sums["loss"][0], sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """Cross-entropy, top-1 and top-5 hits of a batch as in `loss`, with "weight" float32
        [batch].

        Images with the label UNREAD count as examples and nowhere else. With "real" int32 [batch,
        labels], filled with -1, it also counts the images whose first class is among their ReaL
        labels, of all that have some.
        """
        logits, labels, weights = (
            self.apply(params, batch["image"]),
            batch["label"],
            batch["weight"],
        )
        read = weights * (labels != UNREAD)
        _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
        hits = best == labels[:, None]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
        sums = {
            "loss": weighted_sum(losses, read),
            "top1": weighted_sum(hits[:, 0], read),
            "top5": weighted_sum(hits.any(-1), read),
            "examples": weighted_sum(labels != UNREAD, weights),
            "classes": (
                jnp.zeros(logits.shape[-1]).at[jnp.maximum(labels, 0)].add(read),
                read.sum(),
            ),
        }
        if "real" in batch:
            real = batch["real"]
            sums["real"] = weighted_sum((best[:, :1] == real).any(-1), read * (real >= 0).any(-1))
        return sums, {}

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """ReaL accuracy is among them if its labels are given."""
        return "top1", "top5", "loss", *(["real"] if self.config.eval.real_labels else [])

    def summarize(self, sums: Totals, outputs: Outputs) -> dict[str, float]:
        """Top-1, top-5, ReaL accuracy and loss of the images that could be read, and the number
        that could not.

        Raises:
            DataError: more images cannot be read, over all hosts, than config.data.max_bad_records
                allows; or no image has a ReaL label.
        """
        read, examples = map(int, sums["examples"])
        limit = self.config.data.max_bad_records
        if examples - read > limit or not read:
            raise DataError(
                f"{examples - read} of {examples} held-out images cannot be read (config.data.max_bad_records="
                f"{limit}; standard error names them): mend them or raise the limit"
            )
        if "real" in sums and not sums["real"][1]:
            raise DataError(
                f"{self.config.eval.real_labels} has no label for any held-out image; give ReaL's file"
            )
        names = [name for name in ("top1", "top5", "real", "loss") if name in sums]
        means: dict[str, float] = {name: sums[name][0] / sums[name][1] for name in names}
        unread = {"unread": examples - read} if examples > read else {}
        return means | {"examples": examples} | unread

    def baselines(self, sums: Totals) -> list[base.Baseline]:
        """One class for all images: the most frequent one of the held-out data."""
        counts, read = sums["classes"]
        return [base.Baseline("the most frequent class", {"top1": float(max(counts)) / read})]

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of their labels: the run folder's, else the training
        data's."""
        return self.saved_names(CLASSES_FILE) or tuple(self.source("train").classes)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """What to show people for each class: the run folder's own words if it has them, else the
        class itself."""
        names = self.saved_names(NAMES_FILE) or self.classes
        if len(names) != len(self.classes):
            own = os.path.join(self.folder, NAMES_FILE)
            raise DataError(
                f"{own} has {len(names)} names for {len(self.classes)} classes: remove it, or mend it"
            )
        return names

    def fingerprint(self, side: str) -> Fingerprint:
        """See `Task`."""
        return self.source(side).fingerprint()

    def examples(self, side: str) -> ReadableExamples:
        """The images of a side, decoded and cropped; see `ReadableExamples` for those that cannot
        be read."""
        transform = self.training_example if side == "train" else self.evaluation_example
        return self._readable(side, transform)

    def labelled(self, side: str) -> ReadableExamples:
        return self._readable(side, self.evaluation_example)

    def _readable(self, side: str, transform: Callable[..., dict]) -> ReadableExamples:
        if self.source(side).dark:
            options = dict(transform=transform, channels=self.config.model.channels)
            transform = functools.partial(views.dark_example, **options)
        return ReadableExamples(self.source(side), transform, self._bad)

    @classmethod
    def row(
        cls, config: ConfigDict, inputs: Sequence[Any], label: Any, path: str
    ) -> dict[str, Any]:
        """See `Task`: images that are no files on this disk become PNG files."""
        image = inputs[0]
        if not isinstance(image, str | os.PathLike) or files.is_remote(os.fspath(image)):
            views.write_image(image, image_path := f"{path}.png", config.model.channels)
            image = image_path
        return {"image": os.path.abspath(image), "label": label}

    def train_batches(self, start: int, host: int, hosts: int) -> pipeline.Batches:
        images, repeats = self.examples("train"), self.config.augment.repeats
        positions: Any = range(len(images))
        options = dict(
            start=start, host=host, hosts=hosts, repeats=repeats, **self.pipeline_options()
        )
        return pipeline.train_batches(positions, transform=images.train, **options)

    def evaluation_batches(self, host: int, hosts: int, shares: int = 1) -> pipeline.Batches:
        options = dict(
            batch_size=self.evaluation_batch_size(shares), workers=self.config.data.workers
        )
        return pipeline.evaluation_batches(
            self.examples("heldout"), host=host, hosts=hosts, **options
        )

    @property
    def evaluation_example(self) -> Callable[[dict], dict]:
        """A picklable function: a record to {"image" uint8 [height, width, channels], "label"},
        without chance."""
        options = {key: self.config.data[key] for key in ("eval_crop", "transform")}
        return functools.partial(views.evaluation_example, **self._size, **options)

    @property
    def training_example(self) -> Callable[[dict, np.random.Generator], dict]:
        """The same for training, with a random generator: cropped, mirrored and augmented, not
        mixed with others."""
        augment, data = self.config.augment, self.config.data
        options = {name: augment[name] for name in Augmentation._fields if name in augment}
        augmentation = Augmentation(mean=data.mean, std=data.std, **options)
        options = dict(flip=data.flip, min_scale=data.min_scale, augmentation=augmentation)
        return functools.partial(views.training_example, **options, **self._size)

    @property
    def _size(self) -> dict[str, Any]:
        return dict(size=self.config.model.image_size, channels=self.config.model.channels)

    def prepare(self, given: Any, truncate: bool = False) -> Prepared:
        """See `Task`: the path of an image, or its pixels, uint8 [height, width, channels].

        Raises:
            DataError: a file is missing or does not decode, or an array is no such image.
        """
        record = views.record_of(given, self.config.model.channels)
        return Prepared([{"image": self.evaluation_example(record)["image"]}])

    def encode(self, inputs: Sequence[Any]) -> np.ndarray:
        """See `Task`: uint8 [batch, height, width, channels], as evaluation sees the images."""
        return np.stack([self.prepare(image).examples[0]["image"] for image in inputs])

    def prediction_scores(self, params: Any, batch: Batch) -> jax.Array:
        """See `Task`: one prediction for each image."""
        return self.apply(params, batch["image"])[:, None]

    @property
    def prediction_names(self) -> Sequence[str]:
        return self.names

    def assets(self) -> dict[str, bytes]:
        """The classes, and the words for people if the run folder has them."""
        lists = {CLASSES_FILE: self.classes} | (
            {NAMES_FILE: self.names} if self.saved_names(NAMES_FILE) else {}
        )
        return {name: json.dumps(values, indent=1).encode() for name, values in lists.items()}

    def notes(self) -> list[str]:
        """See `Task`; raises DataError if a file is on both sides, or held-out images cannot be
        read."""
        train, heldout = self.source("train"), self.source("heldout")
        most = _FEW if files.is_remote(heldout.path) else _LOOKED_INTO
        # reading counts those that cannot be read
        with ThreadPoolExecutor(pipeline.usable_cores()) as pool:
            collections.deque(
                pool.map(self.labelled("heldout").__getitem__, spread(len(heldout), most)), 0
            )
        return [*filter(None, (sources.check_overlap(train, heldout), sources.check_copies(train)))]

    def class_sizes(self) -> Sequence[int] | None:
        """See `Task`."""
        sizes = sources.class_sizes(self.source("train"))
        return None if sizes is None else sizes.tolist()

    @functools.cached_property
    def _class_order(self) -> Sequence[str]:
        """What config.data.class_map says of the classes 0, 1, ...; () if it is empty."""
        given, key = self.config.data.class_map, "config.data.class_map"
        if given == "run":
            if not (names := self.saved_names(CLASSES_FILE)):
                raise DataError(
                    f"{key} is 'run', and this run has no list of classes yet: give a file"
                )
            return names
        lines = decode_utf8(files.read_small(given)).splitlines() if given else []
        # ImageNet's lists have words behind the numbers of WordNet, as Kaggle's
        # LOC_synset_mapping.txt.
        words = [
            line.split(maxsplit=1)[0] if re.match(r"n\d{8}\b", line) else line.strip()
            for line in lines
        ]
        if given and (len({*words}) < len(words) or len(words) < 2 or "" in words):
            raise DataError(f"{key}={given}: expected a line for each class, each another one")
        return words

    @functools.cache  # noqa: B019 - what both sides have to say is said once
    def _say(self, line: str) -> None:
        print(line, file=sys.stderr)

    @functools.cached_property
    def _bad(self) -> BadRecords:
        return BadRecords(self.config.data.max_bad_records)

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def source(self, side: str) -> sources.ImageSource:
        """The images of a side, "train" or "heldout", with the run's list of classes.

        Raises:
            DataError: there are none, or they have other classes.
        """
        if sides.path_of(self.config, side, "PATH or tfds:NAME") == sides.EMBEDDED:
            source = embedded.embedded_digits("train" if self.config.data.search else side)
            if self.config.data.search:
                source = sources.split_images(source, sides.share_of(self.config))[
                    side == "heldout"
                ]
        else:
            options = dict(cache_folder=self.config.data.cache, order=self._class_order)
            source = sides.open_side(self.config, side, sources.open_side, **options)
        frames, source.dark = views.look_into(
            source.source if isinstance(source, sources.Subset) else source
        )
        if self.saved_names(CLASSES_FILE) or side == "heldout":
            saved = (
                os.path.join(self.folder, CLASSES_FILE) if self.saved_names(CLASSES_FILE) else ""
            )
            where = saved or self.source("train").path
            source = sources.with_classes(source, self.classes, where, some=side == "heldout")
        for line in (*source.notes, *frames):
            self._say(line)
        if side == "heldout" and self.config.eval.real_labels:
            source = sources.RealLabels(source, self.config.eval.real_labels)
        return source
