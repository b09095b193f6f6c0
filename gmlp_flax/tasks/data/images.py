"""Images with classes: decoded, cropped and augmented, in the order of training."""

import functools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gmlp_flax.data import checks, classes, embedded, pipeline, splits
from gmlp_flax.data.classes import CLASSES_FILE, NAMES_FILE
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.fingerprints import spread
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.images import decoding, sampling, views
from gmlp_flax.data.images.augment import Augmentation
from gmlp_flax.data.images.readable import ReadableExamples
from gmlp_flax.data.images.real_labels import with_real_labels
from gmlp_flax.data.readers import images as image_reader
from gmlp_flax.data.readers.image_tables import FILE_COLUMN, LABEL_COLUMN
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecords, decode_utf8
from gmlp_flax.tasks.data import config as data_config
from gmlp_flax.tasks.data.base import TaskData, single_input

EXPECTED = "PATH or tfds:NAME"  # of config.data.train
HELDOUT_SPLITS = (splits.VALIDATION_SPLIT, splits.TEST_SPLIT)  # the first that exists

CLASS_MAP_KEY = "config.data.class_map"

# Held-out images that are decoded at the start, on a disk and in a bucket.
DECODED_LOCAL = 400
DECODED_REMOTE = 64

_SYNSET = re.compile(r"n\d{8}\b")  # of WordNet


def evaluation_example(config: ConfigDict) -> Callable[[dict], dict]:
    """A picklable function: a record to {"image" uint8 [height, width, channels], "label"}, without
    randomness."""
    return functools.partial(
        views.evaluation_example,
        size=config.model.image_size,
        pixels=pixels_of(config),
        eval_crop=config.data.eval_crop,
        transform=config.data.transform,
    )


def training_example(config: ConfigDict) -> Callable[[dict, np.random.Generator], dict]:
    """The same for training, with a random generator: cropped, mirrored and augmented, not mixed
    with others."""
    data = config.data
    names = [name for name in Augmentation._fields if name in config.augment]
    options = {name: config.augment[name] for name in names}
    return functools.partial(
        views.training_example,
        size=config.model.image_size,
        pixels=pixels_of(config),
        crop=views.Crop(data.min_scale, data.flip),
        augmentation=Augmentation(mean=data.mean, std=data.std, **options),
    )


def pixels_of(config: ConfigDict) -> views.Pixels:
    """How the pixels of images are read."""
    return views.Pixels(config.model.channels, config.data.max_value)


class ImageData(TaskData):
    """Images with classes."""

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of their labels: the run's, else the training
        data's."""
        run_classes = self.run_files.names(CLASSES_FILE)
        return run_classes or tuple(self.dataset(TRAIN).classes)

    @functools.cache  # noqa: B019 - data live as long as their run
    def dataset(self, role: str) -> Dataset:
        """The images of a role, "train" or "heldout", with the run's list of classes.

        Raises:
            DataError: there are none, or they have other classes.
        """
        read = self._read(role)
        original = read.origin or read
        sampled = sampling.sample(original)
        dataset = self._with_classes_of_run(read, role)
        notes = sampling.notes(sampled, self.config.data.max_value)
        if role == HELDOUT:
            notes += checks.check_heldout_size(dataset)
            notes += checks.check_heldout_classes(dataset)
            real_labels = self.config.eval.real_labels
            if real_labels:
                dataset = with_real_labels(dataset, real_labels)
        return dataset.with_notes(*notes)

    def _with_classes_of_run(self, dataset: Dataset, role: str) -> Dataset:
        """The images with the classes of the run, or of the training data."""
        is_heldout = role == HELDOUT
        if self.run_files.names(CLASSES_FILE):
            where = self.run_files.path(CLASSES_FILE)
        elif is_heldout:
            where = self.dataset(TRAIN).name
        else:
            return dataset
        return classes.in_order(dataset, self.classes, where, partial=is_heldout)

    def _read(self, role: str) -> Dataset:
        """The images of a role, with the classes that they have."""
        path = data_config.path_of(self.config, role, EXPECTED)
        if path == data_config.EMBEDDED:
            return self._embedded(role)
        dataset = data_config.open_split(self.config, role, self._splits, EXPECTED, HELDOUT_SPLITS)
        class_map = self._class_map
        if class_map:
            dataset = classes.named(dataset, class_map)
        if role == TRAIN:  # a model with its classes may be scored on the images of one of them
            original = dataset.origin or dataset
            classes.require_several(original)
        return dataset

    def _splits(self, path: str, ignore_splits: bool) -> Splits:
        return image_reader.read(path, self.config.data.cache, ignore_splits)

    def _embedded(self, role: str) -> Dataset:
        """The digits that come with this package."""
        if not self.config.data.search:
            return embedded.embedded_digits(role)
        digits = embedded.embedded_digits(TRAIN)
        share = data_config.share_of(self.config)
        return digits.hold_out(role, share)

    @functools.cached_property
    def _class_map(self) -> Sequence[str]:
        """The names that config.data.class_map has for the classes 0, 1, ...; () if it is empty."""
        path = self.config.data.class_map
        if not path:
            return ()
        if path != "run":
            return _classes_in_lines(path)
        names = self.run_files.names(CLASSES_FILE)
        if not names:
            raise DataError(
                f"{CLASS_MAP_KEY} is 'run', and this run has no list of classes yet: give a file"
            )
        return names

    def examples(self, role: str) -> ReadableExamples:
        """The images of a role, decoded and cropped; see `ReadableExamples` for those that cannot
        be read."""
        if role != TRAIN:
            return self.labelled(role)
        example = training_example(self.config)
        dataset = self.dataset(role)
        return ReadableExamples(dataset, example, self._bad)

    def labelled(self, role: str) -> ReadableExamples:
        """See `TaskData`: as evaluation sees them."""
        example = evaluation_example(self.config)
        dataset = self.dataset(role)
        return ReadableExamples(dataset, example, self._bad)

    @functools.cached_property
    def _bad(self) -> BadRecords:
        return BadRecords(self.config.data.max_bad_records)

    def train_order(self) -> pipeline.Order:
        """See `TaskData`."""
        images = self.examples(TRAIN)
        positions: Any = range(len(images))
        return pipeline.Shuffled(
            positions,
            self.config.seed,
            transform=images.train,
            repeats=self.config.augment.repeats,
            batch_size=self.config.batch_size,
        )

    def assets(self) -> dict[str, bytes]:
        """See `TaskData`: the classes, and the words for people if the run has them."""
        assets = {CLASSES_FILE: _as_json(self.classes)}
        words = self.run_files.names(NAMES_FILE)
        if words:
            assets[NAMES_FILE] = _as_json(words)
        return assets

    def notes(self) -> list[str]:
        """See `TaskData`; raises DataError if held-out images are trained on or cannot be read."""
        train = self.dataset(TRAIN)
        heldout = self.dataset(HELDOUT)
        self._decode_some_heldout()
        original = train.origin or train
        lines = [
            *checks.check_classes(train),
            checks.check_overlap(train, heldout),
            checks.check_contradictions(original),
        ]
        return [line for line in lines if line]

    def _decode_some_heldout(self) -> None:
        """Reads some held-out images, which counts those that cannot be read."""
        heldout = self.dataset(HELDOUT)
        most = DECODED_REMOTE if files.is_remote(heldout.path) else DECODED_LOCAL
        indices = spread(len(heldout), most)
        examples = self.labelled(HELDOUT)
        threads = pipeline.usable_cores()
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(examples.__getitem__, indices):
                pass

    @classmethod
    def row(
        cls, config: ConfigDict, inputs: Sequence[Any], label: Any, path: str
    ) -> Mapping[str, Any]:
        """See `TaskData`: images that are not files on this disk become PNG files. The rows name
        them by their paths relative to the folder of the rows."""
        image = single_input(inputs, "image")
        if label is None:
            raise DataError(
                "an example has no label: expected (image, label), or a dict with `label`"
            )
        if isinstance(image, str | os.PathLike) and not files.is_remote(os.fspath(image)):
            return {FILE_COLUMN: os.path.abspath(image), LABEL_COLUMN: label}
        image_path = f"{path}.png"
        decoding.write_image(image, image_path, config.model.channels)
        folder, name = os.path.split(image_path)
        relative_path = f"{os.path.basename(folder)}/{name}"
        return {FILE_COLUMN: relative_path, LABEL_COLUMN: label}

    @classmethod
    def label_column(cls, config: ConfigDict) -> str:
        """See `TaskData`."""
        return LABEL_COLUMN


def _classes_in_lines(path: str) -> list[str]:
    """The classes in the lines of a file of config.data.class_map."""
    content = files.read_small(path)
    text = decode_utf8(content)
    names = []
    for line in text.splitlines():
        name = line.strip()
        if _SYNSET.match(line):
            # Words follow the numbers of WordNet in ImageNet's lists, as in Kaggle's
            # LOC_synset_mapping.txt.
            name, *_ = line.split(maxsplit=1)
        names.append(name)
    count = len(names)
    has_twins = len(set(names)) < count
    if has_twins or count < 2 or "" in names:
        raise DataError(f"{CLASS_MAP_KEY}={path}: expected one class a line, all different")
    return names


def _as_json(names: Sequence[str]) -> bytes:
    text = json.dumps(names, indent=1)
    return text.encode()
