"""Folders as TFDS prepares them: TFDS itself and our own reader find what was written."""

import hashlib

import pytest
import tensorflow_datasets as tfds

from gmlp_flax.data.finetuning.sentence_rows import tfds_rows
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, tfds_folders
from gmlp_flax.io.tfds_writing import write_labelled_texts

SPLITS = {"train": [("a ü", 1), ("b", 0)], "test": [("c", 2)]}
CLASSES = ("no", "yes", "maybe")


def written(folder):
    write_labelled_texts(str(folder), "texts", CLASSES, SPLITS, {"more.json": lambda: b"{}"})
    return folder


def test_both_readers(tmp_path):
    path = str(written(tmp_path / "texts"))
    folder = tfds_folders.load(path, files.find_files(path))
    assert folder.file_format == "array_record" and folder.fields["label"].names == list(CLASSES)
    rows = {name: [row for _, row in tfds_rows(folder, name)] for name in folder.lengths}
    assert rows == {
        name: [{"text": text, "label": CLASSES[label]} for text, label in of] for name, of in SPLITS.items()
    }
    source = tfds.builder_from_directory(path).as_data_source("train")
    assert [(row["text"].decode(), row["label"]) for row in source] == SPLITS["train"]


def test_the_same_bytes(tmp_path):
    one, other = written(tmp_path / "one"), written(tmp_path / "other")
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir()) and "more.json" in names
    for name in names:
        assert (
            hashlib.sha256((one / name).read_bytes()).digest() == hashlib.sha256((other / name).read_bytes()).digest()
        )


def test_unfinished_without_its_last_file(tmp_path):
    """Also over a whole folder: what reads it meanwhile is told."""

    def broken():
        yield "a", 0
        raise KeyError

    written(tmp_path)
    with pytest.raises(KeyError):
        write_labelled_texts(str(tmp_path), "texts", CLASSES, {"train": broken()}, {})
    with pytest.raises(DataError, match="no dataset_info.json: not a whole TFDS folder"):
        tfds_folders.load(str(tmp_path), files.find_files(str(tmp_path)))


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot write"):
        written(tmp_path / "file" / "inside")
