import os

import numpy as np
import pytest

from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.data.images.folders import ImageFolder
from gmlp_flax.data.images.sources import (
    Subset,
    check_copies,
    check_overlap,
    class_sizes,
    name_numbers,
    open_side,
    split_images,
    with_classes,
)
from gmlp_flax.data.splits import Side
from gmlp_flax.errors import DataError
from tests.data.images import image_files
from tests.data.images.image_files import make_folder
from tests.failures import failure


def names(source):
    return [source[i]["name"] for i in range(len(source))]


def test_split_errors(tmp_path):
    source = ImageFolder(
        make_folder(tmp_path, {"a/1.png": b"", "b/1.png": b"", "b/2.png": b""})
    ).of_split()
    with pytest.raises(
        DataError, match="class 'a' of .* has a single image: add one, or remove the class"
    ):
        split_images(source, 0.1)


def test_subset():
    digits = embedded_digits("train")
    subset = Subset(digits, [5, 3])
    assert [subset[i]["label"] for i in range(len(subset))] == digits.labels[[5, 3]].tolist()
    assert Subset(digits, np.array([5, 3])).labels.tolist() == subset.labels.tolist()


def test_required_classes(tmp_path):
    source = ImageFolder(
        make_folder(tmp_path, {"cat/1.png": b"", **{f"extra{i}/1.png": b"" for i in range(10)}})
    ).of_split()
    with_classes(source, source.classes, "here")
    message = failure(with_classes, source, ("cat", "dog"), "RUN/classes.json")
    assert (
        "11 classes which differ from those of RUN/classes.json: 'dog' only there, 'extra0'"
        in message
    )
    assert f"'extra7', and 2 more only in {str(tmp_path)!r}" in message


def test_folder_and_tar_hold_out_a_share_or_nothing(tmp_path):
    path = str(make_folder(tmp_path, {f"{name}/{i}.png": b"" for name in "ab" for i in range(20)}))
    train, heldout = (
        open_side(path, Side(side, heldout_share=0.2)) for side in ("train", "heldout")
    )
    assert sorted(names(train) + names(heldout)) == sorted(ImageFolder(path).of_split().names)
    assert len(open_side(path, Side("heldout"))) == 40
    assert "has no split 'train': it names no splits" in failure(
        open_side, path, Side("train", "train")
    )
    assert "no images at 'nowhere': expected a folder or a tar file" in failure(
        open_side, "nowhere", Side("train")
    )


@pytest.mark.parametrize(
    ("splits", "options", "expected"),
    [
        ({"train": [3], "validation": [2], "test": [4]}, {}, ("train", "validation")),
        ({"train": [3], "test": [4]}, {}, ("train", "test")),
        (
            {"train": [3], "validation": [2]},
            {"split": "validation", "heldout_split": "train"},
            ("validation", "train"),
        ),
    ],
)
def test_splits_of_a_tfds_folder(tmp_path, splits, options, expected):
    path = str(image_files.tfds_folder(tmp_path / "1.0.0", splits, "tfrecord"))
    for side, split in zip(("train", "heldout"), expected, strict=True):
        for share in (0.0, 0.1):
            source = open_side(path, Side(side, heldout_share=share, **options))
            assert (source.split, len(source)) == (split, sum(splits[split]))


def test_a_split_that_a_tfds_folder_lacks(tmp_path):
    path = str(image_files.tfds_folder(tmp_path / "1.0.0", {"test": [4]}, "tfrecord"))
    assert len(open_side(path, Side("heldout"))) == 4
    assert "has no split 'train': it has 'test'" in failure(open_side, path, Side("train"))


def test_sets_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    image_files.tfds_folder(
        tmp_path / "cifar10" / "3.0.2", {"train": [3], "test": [2]}, "array_record"
    )
    assert [
        len(open_side("tfds:cifar10", Side(side, heldout_share=0.1)))
        for side in ("train", "heldout")
    ] == [3, 2]
    assert "'tfds:cifar100' is not prepared in" in failure(
        open_side, "tfds:cifar100", Side("train")
    )


def test_sizes_of_classes(tmp_path):
    source = ImageFolder(
        make_folder(
            tmp_path,
            {f"{c}/{i}.png": b"" for c, n in zip("abc", (4, 2, 9), strict=True) for i in range(n)},
        )
    )
    assert class_sizes(source.of_split()).tolist() == [4, 2, 9]
    train, heldout = split_images(source.of_split(), 0.3)
    assert (class_sizes(train) + class_sizes(heldout)).tolist() == [4, 2, 9] and min(
        class_sizes(heldout)
    ) > 0


def test_folders_called_by_numbers(tmp_path):
    """ImageNetV2: the order of the names as text, 0, 1, 10, 11, 2, is not that of the numbers."""
    files = {f"{number}/{number}.png": b"" for number in range(12)}
    source = ImageFolder(make_folder(tmp_path, files)).of_split()
    order = [f"n{100 - i}" for i in range(12)]
    named = name_numbers(source, order)
    assert {
        item["name"]: named.classes[item["label"]] for item in map(named.__getitem__, range(12))
    } == {f"{number}/{number}.png": order[number] for number in range(12)}
    with_classes(named, order, "the run")
    assert "config.data.class_map=FILE" in failure(with_classes, source, order, "the run")
    assert "has a class 11, and config.data.class_map has 11 classes" in failure(
        name_numbers, source, order[1:]
    )
    other = ImageFolder(
        make_folder(tmp_path / "b", {"b/cat/1.png": b"", "b/3/1.png": b""})
    ).of_split()
    assert name_numbers(other, order) is other


def opened(path, names, shift=0):
    content = {f"{'ab'[i % 2]}/{i}.png": image_files.png(i + shift) for i in names}
    return ImageFolder(make_folder(path, content)).of_split()


def test_images_on_both_sides(tmp_path):
    train = opened(tmp_path / "train", range(200))
    assert check_overlap(train, opened(tmp_path / "other", range(100), shift=1000)) == ""
    assert check_overlap(train, opened(tmp_path / "few", range(100), shift=198)).startswith(
        "note: about 2% of the held"
    )
    assert check_overlap(train, opened(tmp_path / "one", range(100), shift=199)) == ""
    assert "would be both trained on and held out" in failure(
        check_overlap, train, opened(tmp_path / "train", [])
    )
    (tmp_path / "linked").symlink_to(tmp_path / "train")
    assert "would be both trained on and held out" in failure(
        check_overlap, train, opened(tmp_path / "linked", [])
    )
    (tmp_path / "hard" / "c").mkdir(parents=True)
    os.link(tmp_path / "train" / "a" / "0.png", tmp_path / "hard" / "c" / "x.png")
    assert "'c/x.png' is also among" in failure(check_overlap, train, opened(tmp_path / "hard", []))
    assert check_overlap(*split_images(train, 0.5)) == ""


def test_splits_of_equal_size_are_not_the_same(tmp_path):
    files = {
        f"{split}/{c}/{c}.png": image_files.png(len(split + c))
        for split in ("train", "val")
        for c in ("a", "bb")
    }
    path = str(make_folder(tmp_path / "root", files))
    assert (
        check_overlap(
            *(open_side(path, Side(side, heldout_share=0.1)) for side in ("train", "heldout"))
        )
        == ""
    )


def test_images_in_two_classes(tmp_path):
    files = {
        f"{c}/{i}.png": image_files.png(10 * n + i) for n, c in enumerate("abc") for i in range(6)
    }
    whole = ImageFolder(make_folder(tmp_path, files)).of_split()
    assert check_copies(whole) == check_copies(embedded_digits("train")) == ""
    make_folder(tmp_path, {"a/again.png": files["a/0.png"]})
    assert check_copies(ImageFolder(str(tmp_path)).of_split()) == ""
    make_folder(tmp_path, {"b/copy.png": files["a/0.png"]})
    for source in (found := ImageFolder(str(tmp_path)).of_split(), split_images(found, 0.2)[0]):
        assert (
            "3 images lie in two classes, byte for byte, such as 'a/0.png' and 'b/copy"
            in check_copies(source)
        )
    make_folder(
        tmp_path, {name.replace("a", "c", 1): files[name] for name in files if name.startswith("a")}
    )
    make_folder(
        tmp_path,
        {name.replace("a/", "b/x", 1): files[name] for name in files if name.startswith("a")},
    )
    assert "images lie in two classes" in failure(
        check_copies, ImageFolder(str(tmp_path)).of_split()
    )


def test_held_out_images_may_lack_classes(tmp_path):
    """Labels are positions in the classes to train on, not in those that are there."""
    source = ImageFolder(make_folder(tmp_path, {"cat/1.png": b"", "eel/1.png": b""})).of_split()
    part = with_classes(source, ("cat", "dog", "eel"), "here", some=True)
    assert (
        part.classes == ("cat", "dog", "eel")
        and part.labels.tolist() == [0, 2]
        and source.labels.tolist() == [0, 1]
    )
    assert part.notes[-1].endswith("no image to evaluate of the classes dog")
    assert "'dog' only there" in failure(with_classes, source, ("cat", "dog", "eel"), "here")
    assert "'eel' only in" in failure(
        with_classes, source, ("cat", "dog", "fox"), "here", some=True
    )
