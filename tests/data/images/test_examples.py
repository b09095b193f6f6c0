"""Images from folders, tar files and memory: content, sizes and fingerprints."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.images import examples, stores
from gmlp_flax.data.images.examples import ArrayImages, ListedImages, StoredImages
from gmlp_flax.io.records import BadRecord
from tests.data.images.image_files import make_folder, make_tar, noise, png
from tests.failures import failure

FILES = {"a/1.png": b"one", "b/2.png": b"seven77"}
LABELS = np.array([0, 1], np.int32)
OTHER_LABELS = np.array([1, 0], np.int32)
CLASSES = ("a", "b")


def stored_in_a_folder(path):
    folder = make_folder(path / "x", FILES)
    store = stores.open_folder(str(folder))
    return StoredImages(store.reader, store.names)


def stored_in_a_tar(path):
    tar = make_tar(path, FILES)
    store = stores.open_tar(str(tar))
    return StoredImages(store.reader, store.names)


def listed_in_memory(path):
    return ListedImages(list(FILES), list(FILES.values()))


def listed_on_disk(path):
    folder = make_folder(path / "y", FILES)
    paths = [str(folder / name) for name in FILES]
    return ListedImages(list(FILES), paths)


KINDS = [stored_in_a_folder, stored_in_a_tar, listed_in_memory, listed_on_disk]


@pytest.mark.parametrize("make", KINDS)
def test_images_have_names_contents_and_sizes(tmp_path, make):
    examples = pickle.loads(pickle.dumps(make(tmp_path)))
    assert len(examples) == 2
    assert examples[0] == {"image": b"one", "name": "a/1.png"}
    assert examples[1] == {"image": b"seven77", "name": "b/2.png"}
    for index, (name, content) in enumerate(FILES.items()):
        assert examples.key(index) == name
        assert examples.content(index) == content
        assert examples.size(index) == len(content)


def test_fingerprints_do_not_depend_on_where_images_are(tmp_path):
    expected = listed_in_memory(tmp_path).fingerprint(CLASSES, LABELS)
    assert expected["images"] == 2
    for make in KINDS:
        images = make(tmp_path)
        assert images.fingerprint(CLASSES, LABELS) == expected


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"names": ["a/1.png", "b/3.png"]}, {"names"}),
        ({"images": [b"one", b"seven78"]}, {"content"}),
        ({"labels": OTHER_LABELS}, {"labels"}),
        ({"classes": ("a", "c")}, {"labels"}),
        ({"labels": None}, {"labels"}),
        ({"names": ["a/1.png"], "images": [b"one"]}, {"images", "names", "content"}),
    ],
)
def test_fingerprints_depend_on_names_contents_and_labels(change, differs):
    data = {
        "names": list(FILES),
        "images": list(FILES.values()),
        "classes": CLASSES,
        "labels": LABELS,
    }

    def fingerprint(names, images, classes, labels):
        return ListedImages(names, images).fingerprint(classes, labels)

    before = fingerprint(**data)
    after = fingerprint(**data | change)
    changed = {key for key in after if after[key] != before[key]}
    assert changed == differs


def test_fingerprints_read_only_a_sample_of_many_images():
    class Counted(ListedImages):
        count = 0

        def read(self, index):
            self.count += 1
            return super().read(index)

    names = [str(number) for number in range(10_000)]
    examples = Counted(names, [b""] * len(names))
    fingerprint = examples.fingerprint((), None)
    assert fingerprint["images"] == 10_000
    assert examples.count <= 64


def test_missing_images_have_no_content(tmp_path):
    on_disk = listed_on_disk(tmp_path)
    before = on_disk.fingerprint(CLASSES, LABELS)
    (tmp_path / "y/a/1.png").unlink()
    assert on_disk.content(0) == b""
    assert on_disk.size(0) is None
    with pytest.raises(BadRecord):
        on_disk[0]
    assert on_disk[1]["image"] == b"seven77"
    after = on_disk.fingerprint(CLASSES, LABELS)
    assert after["content"] != before["content"]


@pytest.mark.parametrize("path", ["", "a\0b.png", "\ud800.png", "x" * 5000, "."])
def test_impossible_paths_have_no_content(path):
    examples = ListedImages(["a"], [path])
    assert examples.content(0) == b""
    with pytest.raises(BadRecord):
        examples[0]


def test_arrays_have_names_contents_and_sizes():
    pixels = noise(3, 4, 5, 3)
    examples = pickle.loads(pickle.dumps(ArrayImages(pixels)))
    assert len(examples) == 3
    last = examples[2]
    assert_array_equal(last["image"], pixels[2])
    assert last["name"] == "image 2"
    assert examples.key(2) == "image 2"
    assert examples.content(1) == pixels[1].tobytes()
    assert examples.size(1) == 60


def test_fingerprints_do_not_depend_on_memory_order():
    pixels = noise(3, 4, 5, 3)
    turned = np.asfortranarray(pixels)
    expected = ArrayImages(pixels).fingerprint((), None)
    found = ArrayImages(turned).fingerprint((), None)
    assert found == expected


def test_parts_may_have_another_order():
    whole = ListedImages(["a", "b", "c"], [png(1), png(2), png(3)])
    part = whole.take(np.array([2, 0]))
    assert part[0]["name"] == "c"
    assert part[1]["name"] == "a"
    assert part.content(1) == png(1)


def test_with_classes_labels_images_by_class_names(tmp_path):
    images = listed_in_memory(tmp_path)
    unlabelled = Dataset("/x", "a form", images, "test", notes=("a note",))
    dataset = examples.with_classes(unlabelled, ["b", "a"])
    assert dataset.classes == ("a", "b")
    assert dataset.labels.tolist() == [1, 0]
    assert dataset.split == "test"
    assert dataset.notes == ("a note",)
    assert dataset.stratified
    declared = examples.with_classes(unlabelled, ["b", "a"], declared=("b", "a"))
    assert declared.labels.tolist() == [0, 1]
    assert "'/x'" in failure(examples.with_classes, unlabelled, ["Aa", "aA"])
