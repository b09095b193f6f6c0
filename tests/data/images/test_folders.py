import os
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from gmlp_flax.data.images.folders import ImageFolder, ImageTar
from gmlp_flax.data.images.sources import open_images
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecord
from tests.data.images.image_files import encoded, make_folder, make_tar

FILES = {
    "train/dog/b.PNG": b"b",
    "train/dog/a.jpg": b"a",
    "train/cat/images/c.jpeg": b"c",
    "train/cat/images/d.JFIF": b"dd",
    "train/cat/.hidden.jpg": b"",
    "train/cat/boxes.txt": b"",
    "__MACOSX/dog/a.jpg": b"",
    "wnids.txt": b"",
}


def make(kind, path, files):
    path.mkdir(exist_ok=True)
    return open_images(
        make_folder(path, files) if kind == "folder" else make_tar(path, files, kind)
    ).of_split()


KINDS = pytest.mark.parametrize("kind", ["folder", ""])


@KINDS
def test_items(tmp_path, kind):
    source = make(kind, tmp_path, FILES)
    assert isinstance(source, ImageFolder if kind == "folder" else ImageTar)
    assert source.classes == ("cat", "dog")
    for example in (source, pickle.loads(pickle.dumps(source))):
        items = [example[i] for i in range(len(example))]
        assert [item["name"] for item in items] == [
            "train/cat/images/c.jpeg",
            "train/cat/images/d.JFIF",
            "train/dog/a.jpg",
            "train/dog/b.PNG",
        ]
        assert [item["image"] for item in items] == [b"c", b"dd", b"a", b"b"]
        assert [item["label"] for item in items] == [0, 0, 1, 1]
        assert items[0]["label"].dtype == np.int32


def test_linked_class_folders(tmp_path):
    real = make_folder(tmp_path / "real", {"cat/1.png": b"", "dog/1.png": b""})
    (tmp_path / "linked").mkdir()
    for name in ("cat", "dog"):
        (tmp_path / "linked" / name).symlink_to(real / name)
    assert ImageFolder(tmp_path / "linked").of_split().classes == ("cat", "dog")


def test_file_that_is_gone_is_a_bad_record(tmp_path):
    source = ImageFolder(make_folder(tmp_path, {"cat/1.png": b"", "cat/2.png": b"2"})).of_split()
    (tmp_path / "cat" / "1.png").unlink()
    with pytest.raises(BadRecord, match="reading .*cat/1.png failed .No such file or directory."):
        source[0]
    assert source[1]["image"] == b"2"


@KINDS
@pytest.mark.parametrize(
    "files, message",
    [
        ({}, "has no classes, as there are no images: expected one folder of images per class"),
        (
            {"cat/a.jpg": b"", "b.jpg": b""},
            "image 'b.jpg' lies outside of the class folders; move it into one",
        ),
        ({"cat/a.jpg": b"", "dog": None}, "class folder 'dog' is empty: .*; fill or remove it"),
    ],
)
def test_bad_layouts(tmp_path, kind, files, message):
    with pytest.raises(DataError, match=message):
        make(kind, tmp_path, files)


@KINDS
def test_images_are_known_by_their_content(tmp_path, kind):
    kinds = {
        "a.jpe": "JPEG",
        "b": "PNG",
        "c.JPG.jpeg_large": "JPEG",
        "d.jp2": "JPEG2000",
        "e.avif": "AVIF",
        "f.2": "QOI",
    }
    kinds |= {"g.qoi": "QOI", "h.tga": "TGA", "i.pcx": "PCX", "j": "TIFF"}
    images = {
        f"cat/{name}": encoded(Image.new("RGB", (5, 4)), each) for name, each in kinds.items()
    } | {"dog/1.png": b""}
    others = {
        "cat/notes": b"text",
        "cat/Thumbs.db": b"\xd0\xcf\x11\xe0",
        "cat/k.heic": b"\0\0\0\x18ftypheic",
        "dog/m.heic": b"",
    }
    source = make(kind, tmp_path, images | others)
    assert sorted(source.names) == sorted(images)
    assert source.notes[-1].endswith(
        "ignored 4 files that are no images (.heic 2, .db 1, no suffix 1)"
    )
    assert [source[i]["image"] for i in range(len(source))] == [
        images[name] for name in source.names
    ]


def test_files_of_a_suffix_without_images_are_not_all_opened(tmp_path, monkeypatch):
    opened, real = [], Image.open
    monkeypatch.setattr(Image, "open", lambda file: opened.append(file) or real(file))
    make(
        "folder", tmp_path, {f"cat/{i}.{end}": b"<x>" for i in range(300) for end in ("xml", "png")}
    )
    assert len(opened) == 100


def test_a_tar_file_of_a_tar_file_per_class(tmp_path):
    """ImageNet's archive of training images."""
    images = {
        f"n{c}": {f"n{c}_{i}.JPEG": f"{c}{i}".encode() * 999 for i in range(3)} for c in range(3)
    }
    inner = {
        f"{name}.tar": make_tar(tmp_path, files).read_bytes() for name, files in images.items()
    }
    source = ImageTar(make_tar(tmp_path, inner)).of_split()
    for example in (source, pickle.loads(pickle.dumps(source))):
        found = {
            item["name"]: (item["image"], example.classes[item["label"]])
            for item in (example[i] for i in range(9))
        }
        assert found == {
            f"{c}/{name}": (data, c) for c, files in images.items() for name, data in files.items()
        }


@pytest.mark.parametrize("suffix", ["", "gz", "xz"])
def test_truncated_tar(tmp_path, suffix):
    noise = np.random.default_rng(0).bytes(50_000)
    path = make_tar(tmp_path, {"cat/a.jpg": noise, "dog/b.jpg": noise[::-1]}, suffix)
    path.write_bytes(path.read_bytes()[:40_000])
    with pytest.raises(
        DataError, match="images.tar.*: truncated or not a tar file .*copy it again"
    ):
        ImageTar(path).of_split()


@pytest.mark.parametrize(
    ("kind", "size"), [("sparse", 600), ("sparse", 1 << 32), ("larger", 1 << 31)]
)
def test_a_tar_that_unpacks_to_more_than_an_image_has(tmp_path, kind, size):
    """A hundred bytes that claim gigabytes, as a sparse file does."""
    member = tarfile.TarInfo("cat/a.png")
    member.size = size if kind == "larger" else 512
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if kind == "sparse":  # one piece at 0, and the size of all
        header[156:157] = tarfile.GNUTYPE_SPARSE
        header[386:410], header[483:495] = b"%011o\0%011o\0" % (0, 512), b"%011o\0" % size
        assert len(header) == 512
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "a.tar"
    path.write_bytes(header + b"x" * 512 + b"\0" * 1024)
    with pytest.raises(
        DataError, match=rf"^{path}: .*'cat/a.png' is a sparse file or claims {size:,} bytes"
    ):
        ImageTar(path).of_split()


@pytest.mark.parametrize("suffix", ["gz", "xz"])
def test_a_compressed_tar_is_to_be_unpacked(tmp_path, suffix):
    path = make_tar(tmp_path, {"cat/a.png": b"x", "dog/b.png": b"y"}, suffix)
    with pytest.raises(DataError, match=rf"^{path}: .*unpack it"):
        ImageTar(path)


def test_a_tar_writes_nothing(tmp_path):
    """Its names are never joined to a path; those with .. count as hidden."""
    path = make_tar(
        tmp_path, {"x/../../pwned/a.png": b"x", "/tmp/gone/b.png": b"y", "cat/c.png": b"z"}
    )
    before = sorted(tmp_path.rglob("*"))
    source = ImageTar(path).of_split()
    assert sorted(source[index]["image"] for index in range(len(source))) == [b"y", b"z"]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_links_in_a_tar_are_refused(tmp_path, link):
    make_folder(tmp_path / "photos", {"cat/a.jpg": b"a", "dog/b.jpg": b"b"})
    link(tmp_path / "photos/cat/a.jpg", tmp_path / "photos/cat/c.jpg")
    with tarfile.open(tmp_path / "x.tar", "w:") as tar:
        tar.add(tmp_path / "photos", "photos")
    with pytest.raises(DataError, match=r"'photos/cat/[ac].jpg' is a link: extract it"):
        ImageTar(tmp_path / "x.tar")
