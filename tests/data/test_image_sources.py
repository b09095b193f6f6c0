import io
import pickle
import tarfile

import numpy as np
import pytest

from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.image_sources import (
    ImageFolder,
    ImageTar,
    Subset,
    check_same_classes,
    open_images,
    split_images,
)

FILES = {
    "train/dog/b.PNG": b"b",
    "train/dog/a.jpg": b"a",
    "train/cat/images/c.jpeg": b"c",
    "train/cat/images/d.jpeg": b"dd",
    "train/cat/.hidden.jpg": b"",
    "train/cat/boxes.txt": b"",
    "__MACOSX/dog/a.jpg": b"",
    "wnids.txt": b"",
}


def make_folder(path, files):
    for name, data in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data) if data is not None else file.mkdir()
    return path


def make_tar(path, files, suffix=""):
    path = path / f"images.tar{'.' * bool(suffix)}{suffix}"
    with tarfile.open(path, f"w:{suffix}") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data or b"")
            member.type = tarfile.REGTYPE if data is not None else tarfile.DIRTYPE
            tar.addfile(member, io.BytesIO(data or b""))
    return path


def make(kind, path, files):
    path.mkdir(exist_ok=True)
    return open_images(make_folder(path, files) if kind == "folder" else make_tar(path, files, kind))


KINDS = pytest.mark.parametrize("kind", ["folder", "", "gz", "xz"])


@KINDS
def test_items(tmp_path, kind):
    source = make(kind, tmp_path, FILES)
    assert isinstance(source, ImageFolder if kind == "folder" else ImageTar)
    assert source.classes == ("cat", "dog")
    for example in (source, pickle.loads(pickle.dumps(source))):
        items = [example[i] for i in range(len(example))]
        assert [item["name"] for item in items] == [
            "train/cat/images/c.jpeg",
            "train/cat/images/d.jpeg",
            "train/dog/a.jpg",
            "train/dog/b.PNG",
        ]
        assert [item["image"] for item in items] == [b"c", b"dd", b"a", b"b"]
        assert [item["label"] for item in items] == [0, 0, 1, 1]
        assert items[0]["label"].dtype == np.int32
    assert repr(source).endswith(", images=4, classes=2)")


def test_linked_class_folders(tmp_path):
    real = make_folder(tmp_path / "real", {"cat/1.png": b"", "dog/1.png": b""})
    (tmp_path / "linked").mkdir()
    for name in ("cat", "dog"):
        (tmp_path / "linked" / name).symlink_to(real / name)
    assert ImageFolder(tmp_path / "linked").classes == ("cat", "dog")


@KINDS
@pytest.mark.parametrize(
    "files, message",
    [
        ({}, "has no classes: expected one folder a class, with images in it"),
        ({"a.jpg": b"", "b.jpg": b""}, "has no classes"),
        ({"cat/a.jpg": b"", "b.jpg": b""}, "image 'b.jpg' lies outside of the class folders; move it into one"),
        ({"cat/a.jpg": b"", "dog": None}, "class folder 'dog' is empty: .*; fill or remove it"),
        ({"train/cat/a.jpg": b"", "val/cat/a.jpg": b""}, "class 'cat' is both 'train/cat' and 'val/cat'; give"),
    ],
)
def test_bad_layouts(tmp_path, kind, files, message):
    with pytest.raises(DataError, match=message):
        make(kind, tmp_path, files)


def test_missing_paths(tmp_path):
    with pytest.raises(DataError, match="no images at '.*nowhere': expected a folder or a tar file"):
        open_images(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no image folder at '.*nowhere'"):
        ImageFolder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no tar file at '.*nowhere'"):
        ImageTar(tmp_path / "nowhere")


@pytest.mark.parametrize("suffix", ["", "gz", "xz"])
def test_truncated_tar(tmp_path, suffix):
    noise = np.random.default_rng(0).bytes(50_000)
    path = make_tar(tmp_path, {"cat/a.jpg": noise, "dog/b.jpg": noise[::-1]}, suffix)
    path.write_bytes(path.read_bytes()[:40_000])
    with pytest.raises(DataError, match="images.tar.*: truncated or not a tar file .*; copy or download it again"):
        ImageTar(path)


def test_not_a_tar(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(DataError, match="a.tar: truncated or not a tar file"):
        ImageTar(tmp_path / "a.tar")


def test_split_is_by_name_and_class(tmp_path):
    files = {f"{name}/{i}.png": b"" for name, count in (("a", 200), ("b", 2), ("c", 3)) for i in range(count)}
    source = make("folder", tmp_path, files)
    train, heldout = split_images(source, 0.1)
    names = [[side[i]["name"] for i in range(len(side))] for side in (train, heldout)]
    assert sorted(names[0] + names[1]) == sorted(files)
    assert train.classes == heldout.classes == source.classes
    assert np.bincount(train.labels).min() >= 1 and np.bincount(heldout.labels).min() >= 1
    assert 10 <= np.sum(heldout.labels == 0) <= 30
    tar = make_tar(tmp_path, dict(reversed(files.items())))
    assert np.array_equal(split_images(ImageTar(tar), 0.1)[1].indices, heldout.indices)


def test_split_errors(tmp_path):
    source = make("folder", tmp_path, {"a/1.png": b"", "b/1.png": b"", "b/2.png": b""})
    with pytest.raises(DataError, match="class 'a' of ImageFolder.* has a single image: add one, or remove the class"):
        split_images(source, 0.1)
    with pytest.raises(DataError, match="heldout_share=1.5 is not between 0 and 1"):
        split_images(source, 1.5)


def test_subset():
    digits = embedded_digits("train")
    subset = Subset(digits, [5, 3])
    assert [subset[i]["label"] for i in range(len(subset))] == [5, 3] == subset.labels.tolist()
    assert repr(subset) == repr(Subset(digits, np.array([5, 3]))) != repr(Subset(digits, [3, 5]))


def test_same_classes(tmp_path):
    train = make("folder", tmp_path / "train", {"cat/1.png": b"", "dog/1.png": b""})
    other = make("folder", tmp_path / "other", {"cat/1.png": b"", **{f"extra{i}/1.png": b"" for i in range(7)}})
    check_same_classes(train, train)
    with pytest.raises(DataError, match=r"classes differ .*: 'dog' only in .*, 'extra0', .*, 2 more only in .*; give"):
        check_same_classes(train, other)


def test_real_cifar(shared_data):
    source = open_images(shared_data("images/cifar10_jpg_train.tar.xz"))
    assert len(source) == 50_000
    assert source.classes[:3] == ("airplane", "automobile", "bird")
    assert np.bincount(source.labels).tolist() == [5000] * 10


def test_real_tiny_imagenet(shared_data):
    source = open_images(shared_data("images/tiny_imagenet_200_train100.tar.xz"))
    assert np.bincount(source.labels).tolist() == [100] * 200
    assert source.classes[0].startswith("n0")
