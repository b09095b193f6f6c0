"""Which images of a folder tree are read, of which split and class; the fuzzer image_trees has random trees."""

import random
import unicodedata

import pytest

from gmlp_flax.data.images.folders import ImageFolder
from gmlp_flax.data.images.sources import open_side
from tests.data.images.image_files import make_folder
from tests.failures import failure
from tests.fuzz import image_trees


def counts(path, split=""):
    source = ImageFolder(str(path)).of_split(split)
    return {name: int((source.labels == label).sum()) for label, name in enumerate(source.classes)}


def tree(path, *names, **content):
    return make_folder(path, dict.fromkeys(names, b"") | content)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # Photographs sorted further within their class (pytorch/vision 80).
        (["cat/1.jpg", "cat/indoor/2.jpg", "dog/3.jpg"], {"": {"cat": 2, "dog": 1}}),
        (["cat/2021-03-01/1.jpg", "dog/2021-04-11/3.jpg", "dog/x/y/4.jpg"], {"": {"cat": 1, "dog": 2}}),
        # Tiny-ImageNet and its like.
        (["train/n1/images/1.jpg", "train/n2/images/2.jpg"], {"train": {"n1": 1, "n2": 1}}),
        # Folders around, and around the classes of a split (Intel's scenes).
        (["a/b/cat/1.jpg", "a/b/dog/2.jpg"], {"": {"cat": 1, "dog": 1}}),
        (["photos_test/train/a/1.jpg", "photos_test/train/b/1.jpg"], {"train": {"a": 1, "b": 1}}),
        (
            ["seg_train/seg_train/sea/1.jpg", "seg_train/seg_train/ice/1.jpg", "seg_test/seg_test/sea/2.jpg"],
            {"train": {"ice": 1, "sea": 1}},
        ),
        # Splits by many names, several folders of one (ImageNet-100 on Kaggle), and a test part without classes.
        (
            ["train.X1/a/1.jpg", "train.X2/b/1.jpg", "val.X/a/2.jpg", "val.X/b/2.jpg", "test/3.jpg"],
            {"train": {"a": 1, "b": 1}, "validation": {"a": 1, "b": 1}},
        ),
        (["Training/a/1.jpg", "Training/b/1.jpg", "DEV/a/1.jpg", "DEV/b/1.jpg"], {"validation": {"a": 1, "b": 1}}),
        (["train/a/1.jpg", "train/b/1.jpg", "test1/a/1.jpg", "test1/b/1.jpg"], {"test": {"a": 1, "b": 1}}),
        # Classes that are called as a split (CIFAR-100, Places365).
        (["apple/1.jpg", "train/2.jpg", "bus/3.jpg"], {"": {"apple": 1, "bus": 1, "train": 1}}),
        (["ice_rink/1.jpg", "train_interior/2.jpg"], {"": {"ice_rink": 1, "train_interior": 1}}),
        (["train/train/1.jpg", "train/bus/1.jpg"], {"train": {"bus": 1, "train": 1}}),
        # Kaggle's whole ImageNet.
        (
            ["I/Annotations/x.xml", "I/Data/CLS-LOC/train/n1/1.JPEG", "I/Data/CLS-LOC/train/n2/1.JPEG", "s.csv"],
            {"train": {"n1": 1, "n2": 1}},
        ),
    ],
)
def test_classes_and_splits(tmp_path, names, expected):
    path = tree(tmp_path / "root", *names)
    assert {split: counts(path, split) for split in expected} == expected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["cat/1.jpg", "dog/1.jpg", "test/1.jpg"],
            "'test' can be read as splits, or as classes like 'cat', 'dog' beside",
        ),
        (
            ["train/a/1.jpg", "train/b/1.jpg", "extra/1.jpg"],
            "'train' can be read as splits, or as classes like 'extra'",
        ),
        (["cat/train/1.jpg", "cat/val/2.jpg", "dog/val/1.jpg"], "'cat/val' can be read as a split of a class"),
        (["train/1.jpg", "test1/2.jpg"], "/train/' has no classes: 1 images in no class folders; expected one folder"),
        (["trainval/a/1.jpg", "test/a/2.jpg"], "'trainval' can be read as the split 'train' or 'validation'"),
        (["images/1.jpg", "masks/1.png"], "image 'images/1.jpg' lies outside of the class folders"),
        (["data/x.zip"], "(found .zip; unpack archives)"),
    ],
)
def test_what_can_be_read_in_two_ways(tmp_path, names, message):
    path = str(tree(tmp_path / "root", *names))
    told = failure(lambda: ImageFolder(path).of_split())
    assert message in told


def test_a_side_without_classes_is_refused_only_if_it_is_read(tmp_path):
    path = str(tree(tmp_path / "root", "train/a/1.jpg", "train/b/1.jpg", "val/1.jpg"))
    assert "/val/' has no classes: 1 images in no class folders" in failure(
        open_side, path, "heldout", heldout_share=0.1
    )
    assert len(open_side(path, "train")) == 2  # where other held-out images are given
    assert "no split 'test': it has 'train', 'validation'" in failure(open_side, path, "train", split="test")


def test_names_that_look_alike_are_one_class(tmp_path):
    forms = [unicodedata.normalize(form, "été") for form in ("NFC", "NFD")]
    path = tree(tmp_path, *(f"{form}/{i}.png" for i, form in enumerate(forms)), "cat/1.png")
    assert counts(path) == {"cat": 1, forms[0]: 2}


def test_what_was_assumed_is_said(tmp_path):
    path = str(tree(tmp_path, "w/train/a/x/1.jpg", "w/train/b/1.jpg", "w/test/1.jpg", "w/dev/a/1.jpg", "w/dev/b/1.jpg"))
    (tmp_path / "w" / "notes.xyz").touch()
    source = open_side(path, "train", heldout_share=0.5)
    assert source.notes == (
        f"{path!r}: w/dev held out; w/train to train on; w/test left out, having no classes",
        f"{path!r}: w/ is the only folder with images, and is read in its place",
        f"{path!r}: 1 folders inside class folders count to these, such as 'w/train/a/x'",
        f"{path!r}: ignored 1 files that are no images (.xyz 1)",
    )


def test_random_trees(tmp_path):
    check = image_trees.make(tmp_path)
    for seed in range(60):
        check(random.Random(seed))
