import numpy as np
import pytest

from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.data.images import sources
from gmlp_flax.data.images.folders import ImageFolder, ImageTar
from gmlp_flax.data.images.sources import Subset, open_side, require_classes, split_images
from gmlp_flax.errors import DataError
from tests.data.images import image_files
from tests.data.images.image_files import make_folder, make_tar
from tests.failures import failure


def names(source):
    return [source[i]["name"] for i in range(len(source))]


def test_split_is_by_name_and_class(tmp_path):
    files = {f"{name}/{i}.png": b"" for name, count in (("a", 200), ("b", 2), ("c", 3)) for i in range(count)}
    source = ImageFolder(make_folder(tmp_path / "folder", files))
    train, heldout = split_images(source, 0.1)
    assert sorted(names(train) + names(heldout)) == sorted(files)
    assert train.classes == heldout.classes == source.classes
    for side in (train, heldout):
        assert np.bincount([side[i]["label"] for i in range(len(side))], minlength=3).min() >= 1
    assert 10 <= sum(heldout[i]["label"] == 0 for i in range(len(heldout))) <= 30
    tar = make_tar(tmp_path, dict(reversed(files.items())))
    assert np.array_equal(split_images(ImageTar(tar), 0.1)[1].indices, heldout.indices)


def test_split_errors(tmp_path):
    source = ImageFolder(make_folder(tmp_path, {"a/1.png": b"", "b/1.png": b"", "b/2.png": b""}))
    with pytest.raises(DataError, match="class 'a' of ImageFolder.* has a single image: add one, or remove the class"):
        split_images(source, 0.1)
    with pytest.raises(DataError, match="heldout_share=1.5 is not between 0 and 1"):
        split_images(source, 1.5)


def test_subset():
    digits = embedded_digits("train")
    subset = Subset(digits, [5, 3])
    assert [subset[i]["label"] for i in range(len(subset))] == digits.labels[[5, 3]].tolist()
    assert repr(subset) == repr(Subset(digits, np.array([5, 3]))) != repr(Subset(digits, [3, 5]))


def test_required_classes(tmp_path):
    source = ImageFolder(make_folder(tmp_path, {"cat/1.png": b"", **{f"extra{i}/1.png": b"" for i in range(7)}}))
    require_classes(source, source.classes, "here")
    message = failure(require_classes, source, ("cat", "dog"), "RUN/classes.json")
    assert message == (
        f"{str(tmp_path)!r} has 8 classes which differ from those of RUN/classes.json: 'dog' only there, 'extra0', "
        f"'extra1', 'extra2', 'extra3', 'extra4', 2 more only in {str(tmp_path)!r}; give data with the same list of "
        "classes"
    )


def test_classes_in_another_order():
    digits = embedded_digits("heldout")
    assert "they are in another order, label 2 is '2' and not '3'; give" in failure(
        require_classes, digits, tuple("0132456789"), "there"
    )


def test_folder_and_tar_hold_out_a_share_or_nothing(tmp_path):
    path = str(make_folder(tmp_path, {f"{name}/{i}.png": b"" for name in "ab" for i in range(20)}))
    train, heldout = (open_side(path, side, heldout_share=0.2) for side in ("train", "heldout"))
    assert sorted(names(train) + names(heldout)) == sorted(ImageFolder(path).names)
    assert len(open_side(path, "heldout")) == 40
    assert "has no splits: config.data.split and heldout_split are for TFDS folders" in failure(
        open_side, path, "train", split="train"
    )
    assert "no images at 'nowhere': expected a folder or a tar file" in failure(open_side, "nowhere", "train")


@pytest.mark.parametrize(
    ("splits", "options", "expected"),
    [
        ({"train": [3], "validation": [2], "test": [4]}, {}, ("train", "validation")),
        ({"train": [3], "test": [4]}, {}, ("train", "test")),
        ({"train": [3], "validation": [2], "test": [4]}, {"heldout_split": "test"}, ("train", "test")),
        ({"train": [3], "validation": [2]}, {"split": "validation", "heldout_split": "train"}, ("validation", "train")),
    ],
)
def test_splits_of_a_tfds_folder(tmp_path, splits, options, expected):
    path = str(image_files.tfds_folder(tmp_path / "1.0.0", splits, "tfrecord"))
    for side, split in zip(("train", "heldout"), expected, strict=True):
        for share in (0.0, 0.1):
            source = open_side(path, side, heldout_share=share, **options)
            assert (source.split, len(source)) == (split, sum(splits[split]))


def test_tfds_split_without_another_shares_its_records(tmp_path):
    """By position, because the labels are not read."""
    path = str(image_files.tfds_folder(tmp_path / "1.0.0", {"train": [30, 30]}, "array_record"))
    train, heldout = (open_side(path, side, heldout_share=0.25) for side in ("train", "heldout"))
    assert sorted([*train.indices, *heldout.indices]) == list(range(60)) and 8 <= len(heldout) <= 22
    assert names(heldout) == [f"ILSVRC2012_val_{i + 1:08d}.JPEG" for i in heldout.indices]
    trained = open_side(path, "train", split="train", heldout_share=0.25)
    np.testing.assert_array_equal(trained.indices, train.indices)


def test_share_of_positions_is_the_share():
    class Fake(sources.TFDSImages):
        def __init__(self):
            self.split, self.classes, self.path = "train", ("a",), "fake"

        def __len__(self):
            return 50_000

        __repr__ = object.__repr__

    for share in (0.01, 0.1, 0.5):
        assert len(split_images(Fake(), share)[1]) / 50_000 == pytest.approx(share, rel=0.15)


def test_split_errors_of_tfds(tmp_path):
    path = str(image_files.tfds_folder(tmp_path / "1.0.0", {"test": [4]}, "tfrecord"))
    assert len(open_side(path, "heldout")) == 4
    known = "has no split 'train': it has 'test'; set split or heldout_split to one of these"
    assert known in failure(open_side, path, "train")
    message = failure(open_side, path, "train", split="test", heldout_split="test", heldout_share=0.1)
    assert "the split 'test' of" in message and "would be both trained on and held out; give two splits" in message


def test_sets_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    image_files.tfds_folder(tmp_path / "cifar10" / "3.0.2", {"train": [3], "test": [2]}, "array_record")
    assert [len(open_side("tfds:cifar10", side, heldout_share=0.1)) for side in ("train", "heldout")] == [3, 2]
    assert "'tfds:cifar100' is not prepared in" in failure(open_side, "tfds:cifar100", "train")
