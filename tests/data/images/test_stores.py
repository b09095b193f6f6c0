"""Files in folders and tar files: names, content, and damage."""

import io
import os
import pickle
import shutil
import tarfile

import numpy as np
import pytest

from gmlp_flax.data.images import stores
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecord
from tests.data import writers
from tests.data.images.image_files import empty_files, make_folder, make_tar, open_store
from tests.failures import failure

FILES = {
    "train/dog/b.PNG": b"b",
    "train/dog/a.jpg": b"a",
    "train/cat/images/c.jpeg": b"c",
    "train/cat/été 猫.JFIF": b"dd",
    "train/cat/boxes.txt": b"x" * 600,
    "empty": None,
    "wnids.txt": b"",
}
HIDDEN = empty_files(
    "train/cat/.hidden.jpg",
    ".git/a.jpg",
    "__MACOSX/dog/a.jpg",
    "train/dog/._a.jpg",
    "dog/@eaDir/a.jpg/T.jpg",
    "$RECYCLE.BIN/a.jpg",
)
NAMES = (
    "train/cat/boxes.txt",
    "train/cat/images/c.jpeg",
    "train/cat/été 猫.JFIF",
    "train/dog/a.jpg",
    "train/dog/b.PNG",
    "wnids.txt",
)
FOLDERS = ("empty", "train", "train/cat", "train/cat/images", "train/dog")


def folder(path):
    return str(make_folder(path / "photos", FILES | HIDDEN))


def tar(path):
    folders = dict.fromkeys(FOLDERS)
    return str(make_tar(path, folders | FILES | HIDDEN))


def remote_folder(path):
    return writers.remote(make_folder(path / "photos", FILES | HIDDEN))


def remote_tar(path):
    tar(path / "copied")
    return f"{writers.remote(path / 'copied')}/images.tar"


PLACES = pytest.mark.parametrize("make", [folder, tar, remote_folder, remote_tar])


@PLACES
def test_stores_have_visible_names_and_contents(tmp_path, make):
    path = make(tmp_path)
    store = open_store(path)
    assert store.path == path
    assert store.names == NAMES
    for name in NAMES:
        assert store.read(name) == FILES[name]
        assert store.reader.size(name) == len(FILES[name])


@PLACES
def test_readers_survive_pickle(tmp_path, make):
    store = open_store(make(tmp_path))
    reader = pickle.loads(pickle.dumps(store.reader))
    assert reader.read("train/dog/a.jpg") == b"a"
    assert reader.size("train/cat/boxes.txt") == 600


@pytest.mark.parametrize("make", [folder, tar])
def test_empty_folders_are_listed(tmp_path, make):
    found = open_store(make(tmp_path)).folders
    visible = [name for name in found if name != "dog"]  # it holds hidden files alone
    assert tuple(visible) == FOLDERS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cat/a.PNG", True),
        ("a.jpg", True),
        ("a.JPG.jpeg", True),
        ("a.jpg.txt", False),
        ("a.jpeg_large", False),
        ("a", False),
        ("png", False),
        ("a.tar", False),
        ("b.jfif", True),
        ("b.avif", True),
        ("b.jp2", True),
        ("b.TIFF", True),
        ("b.pgm", True),
        ("b.heic", False),
        ("b.svg", False),
    ],
)
def test_images_are_recognised_by_suffix(name, expected):
    assert stores.is_image(name) == expected


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        (".a", True),
        ("a/.b/c.png", True),
        ("a/../b.png", True),
        ("__MACOSX/b.png", True),
        ("a.b/c.d.png", False),
        ("a/MACOSX/b.png", False),
    ],
)
def test_hidden_names_are_recognized(name, hidden):
    assert stores.is_hidden(name) == hidden


def test_missing_files_are_bad_records(tmp_path):
    path = make_folder(tmp_path, {"a.png": b"1", "b.png": b"2"})
    store = stores.open_folder(str(path))
    (tmp_path / "a.png").unlink()
    with pytest.raises(BadRecord, match="a.png"):
        store.read("a.png")
    assert store.reader.size("a.png") is None
    assert store.read("b.png") == b"2"


def test_missing_remote_files_are_bad_records(tmp_path):
    path = writers.remote(make_folder(tmp_path, {"a.png": b"1"}))
    store = stores.open_folder(path)
    files.remove(f"{path}/a.png")
    with pytest.raises(BadRecord, match="a.png"):
        store.read("a.png")


def test_pipes_and_devices_are_bad_records(tmp_path):
    """A pipe would hang, and a device has no end."""
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("/dev/zero")
    store = stores.open_folder(str(tmp_path))
    for name in ("a.png", "b.png"):
        with pytest.raises(BadRecord, match="plain file"):
            store.read(name)


def test_huge_images_are_bad_records(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "IMAGE_BYTES", 3)
    path = make_folder(tmp_path, {"a.png": b"123", "b.png": b"1234"})
    assert stores.read_image(str(path / "a.png")) == b"123"
    with pytest.raises(BadRecord, match="3 bytes"):
        stores.read_image(str(path / "b.png"))


@pytest.mark.parametrize("path", ["nowhere.png", "a\0b.png", "\ud800.png", "x" * 300])
def test_impossible_paths_are_bad_records(path):
    assert stores.local_size(path) is None
    with pytest.raises(BadRecord):
        stores.read_image(path)


def test_links_in_a_folder_are_followed(tmp_path):
    real = make_folder(tmp_path / "real", {"cat/1.png": b"1", "2.png": b"2"})
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "cat").symlink_to(real / "cat")
    (linked / "two.png").symlink_to(real / "2.png")
    (linked / "gone.png").symlink_to(real / "3.png")
    store = stores.open_folder(str(linked))
    assert store.names == ("cat/1.png", "gone.png", "two.png")
    assert store.folders == ("cat",)
    assert store.read("cat/1.png") == b"1"
    with pytest.raises(BadRecord, match="gone.png"):
        store.read("gone.png")


def test_folders_that_contain_themselves_are_refused(tmp_path):
    make_folder(tmp_path / "a", {"cat/1.png": b""})
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    message = failure(stores.open_folder, str(tmp_path / "a"))
    assert "more than 30" in message


def test_names_may_be_invalid_utf8(tmp_path):
    name = b"caf\xe9.png"
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
        file.write(b"1")
    store = stores.open_folder(str(tmp_path))
    assert store.names == ("caf\udce9.png",)
    assert store.read("caf\udce9.png") == b"1"


def test_folders_may_have_names_of_images(tmp_path):
    path = make_folder(tmp_path, {"a.png/b.png": b"1"})
    store = stores.open_folder(str(path))
    assert store.names == ("a.png/b.png",)
    assert store.folders == ("a.png",)


def test_tar_files_in_a_tar_file_are_folders(tmp_path):
    """ImageNet's archive of training images has a tar file for each class."""
    images = {}
    inner = {}
    for number, suffix in enumerate(["tar", "TAR", "tar"]):
        contents = {}
        for image in range(3):
            data = f"{number}{image}".encode() * 999
            contents[f"{number}_{image}.JPEG"] = data
        inner_path = make_tar(tmp_path, contents)
        inner[f"n{number}.{suffix}"] = inner_path.read_bytes()
        for name, data in contents.items():
            images[f"n{number}/{name}"] = data
    innermost = make_tar(tmp_path, {"x/deep.png": b"deep"}).read_bytes()
    z_path = make_tar(tmp_path, {"z.tar": innermost})
    inner["y.tar"] = z_path.read_bytes()
    images["y/z/x/deep.png"] = b"deep"
    path = make_tar(tmp_path, inner)
    store = stores.open_tar(str(path))
    found = {}
    for name in store.names:
        found[name] = store.read(name)
    assert found == images


@pytest.mark.parametrize("suffix", ["", "gz", "xz"])
def test_truncated_tar_files_are_refused(tmp_path, suffix):
    noise = np.random.default_rng(0).bytes(50_000)
    contents = {"cat/a.jpg": noise, "dog/b.jpg": noise[::-1]}
    path = make_tar(tmp_path, contents, suffix)
    whole = path.read_bytes()
    path.write_bytes(whole[:40_000])
    message = failure(stores.open_tar, str(path))
    assert str(path) in message


@pytest.mark.parametrize("members", [1, 2])
def test_tar_files_that_end_after_a_member_are_refused(tmp_path, members):
    """The zeros at its end are missing, which tarfile ignores."""
    contents = {"a.jpg": b"a" * 512, "b.jpg": b"b" * 512}
    path = make_tar(tmp_path, contents)
    whole = path.read_bytes()
    end = 1024 * members
    path.write_bytes(whole[:end])
    message = failure(stores.open_tar, str(path))
    assert str(path) in message


def test_damaged_tar_headers_are_refused(tmp_path):
    """tarfile itself would treat it as the end."""
    path = make_tar(tmp_path, {"a.jpg": b"a", "b.jpg": b"b", "c.jpg": b"c"})
    data = bytearray(path.read_bytes())
    data[1024 + 5] ^= 1
    path.write_bytes(data)
    assert str(path) in failure(stores.open_tar, str(path))


def test_concatenated_tar_files_are_refused(tmp_path):
    first = make_tar(tmp_path, {"a.jpg": b"a"}).read_bytes()
    path = make_tar(tmp_path, {"b.jpg": b"b"})
    path.write_bytes(first + path.read_bytes())
    message = failure(stores.open_tar, str(path))
    assert str(path) in message


@pytest.mark.parametrize("data", [b"", b"x", b"PK\3\4" + b"x" * 2000])
def test_other_files_are_not_tar_files(tmp_path, data):
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    assert "x.tar" in failure(stores.open_tar, str(path))


def test_empty_tar_files_have_no_names(tmp_path):
    path = make_tar(tmp_path, {})
    store = stores.open_tar(str(path))
    assert store.names == ()
    assert store.folders == ()


def test_damaged_tar_files_inside_a_tar_are_refused(tmp_path):
    cats = {"a.jpg": b"a" * 512, "b.jpg": b"b" * 512}
    inner = make_tar(tmp_path, cats).read_bytes()
    for kept in (700, 1024, 2048):
        files = {"cat.tar": inner[:kept], "dog/c.jpg": b"c"}
        path = str(make_tar(tmp_path, files))
        message = failure(stores.open_tar, path)
        assert path in message


@pytest.mark.parametrize("size", [600, 1 << 32])
def test_sparse_files_in_a_tar_are_refused(tmp_path, size):
    """A hundred bytes may claim to be gigabytes."""
    member = tarfile.TarInfo("cat/a.png")
    member.size = 512
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"%011o\0%011o\0" % (0, 512)  # one piece at 0
    header[483:495] = b"%011o\0" % size  # the size of all
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "a.tar"
    content = header + b"x" * 512 + b"\0" * 1024
    path.write_bytes(content)
    message = failure(stores.open_tar, str(path))
    assert f"{size:,} bytes" in message


def test_members_larger_than_their_tar_are_refused(tmp_path):
    member = tarfile.TarInfo("cat/a.png")
    member.size = 1 << 31
    path = tmp_path / "a.tar"
    header = member.tobuf(tarfile.GNU_FORMAT)
    content = header + b"x" * 512 + b"\0" * 1024
    path.write_bytes(content)
    message = failure(stores.open_tar, str(path))
    assert f"{1 << 31:,} bytes" in message


@pytest.mark.parametrize("suffix", ["gz", "xz", "bz2"])
def test_compressed_tar_files_must_be_unpacked(tmp_path, suffix):
    path = make_tar(tmp_path, {"cat/a.png": b"x", "dog/b.png": b"y"}, suffix)
    assert "unpack it" in failure(stores.open_tar, str(path))


def test_reading_a_tar_writes_nothing(tmp_path):
    """Its names are never joined to a path."""
    contents = {"/tmp/gone/b.png": b"y", "cat/c.png": b"z"}
    path = make_tar(tmp_path, contents)
    before = sorted(tmp_path.rglob("*"))
    store = stores.open_tar(str(path))
    visible = []
    for name in store.names:
        visible.append(store.read(name))
    assert visible == [b"z", b"y"]
    assert sorted(tmp_path.rglob("*")) == before


def test_names_with_two_dots_in_a_tar_are_refused(tmp_path):
    path = make_tar(tmp_path, {"cat/a.png": b"x", "cat/../../pwned/b.png": b"y"})
    message = failure(stores.open_tar, str(path))
    assert "'cat/../../pwned/b.png' is outside of the file" in message


def link_to_folder(source, target):
    os.symlink(source.parent, target.with_suffix(""))


@pytest.mark.parametrize("link", [os.link, os.symlink, link_to_folder])
def test_links_in_a_tar_are_refused(tmp_path, link):
    photos = make_folder(tmp_path / "photos", {"cat/a.jpg": b"a", "dog/b.jpg": b"b"})
    link(photos / "cat/a.jpg", photos / "dog/c.jpg")
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w:") as archive:
        archive.add(photos, "photos")
    assert "is a link" in failure(stores.open_tar, str(path))


def test_the_last_of_two_members_with_one_name_is_read(tmp_path):
    """`tar -r` adds a newer copy after the old one, and tar unpacks the newer one."""
    path = make_tar(tmp_path, {"a.jpg": b"old"})
    with tarfile.open(path, "a:") as archive:
        member = tarfile.TarInfo("a.jpg")
        member.size = 6
        archive.addfile(member, io.BytesIO(b"newest"))
    store = stores.open_tar(str(path))
    assert store.names == ("a.jpg",)
    assert store.read("a.jpg") == b"newest"


def test_names_in_a_tar_may_be_long(tmp_path):
    folder_name = "é" * 60
    file_name = "x" * 200 + ".png"
    name = f"{folder_name}/{file_name}"
    path = make_tar(tmp_path, {name: b"1"})
    store = stores.open_tar(str(path))
    assert store.names == (name,)
    assert store.read(name) == b"1"


def test_missing_tar_files_are_errors_and_not_bad_records(tmp_path):
    path = make_tar(tmp_path, {"a.png": b"1"})
    store = stores.open_tar(str(path))
    path.unlink()
    with pytest.raises(DataError, match="images.tar"):
        store.read("a.png")


def test_copied_stores_have_the_same_names(tmp_path):
    first = folder(tmp_path / "a")
    second = shutil.copytree(first, tmp_path / "b")
    assert open_store(first).names == open_store(str(second)).names
