import json
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from gmlp_flax.io import files, tfds_folders
from tests.data import writers
from tests.failures import failure

SHARDS = {"train": [[b"a", b"b"], [b"c"]], "validation": [[b"d"]]}


def load(path):
    return tfds_folders.load(str(path), files.find_files(str(path)))


@pytest.mark.parametrize("where", ["local", "remote"])
@pytest.mark.parametrize("file_format", tfds_folders.FORMATS)
def test_shards(tmp_path, file_format, where):
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, file_format)
    folder = load(path if where == "local" else writers.remote(path))
    assert folder.file_format == file_format
    for shard in folder.shards("train"):
        assert shard.file.size > 0
    shards = {
        split: [(shard.file.name, shard.records) for shard in folder.shards(split)]
        for split in folder.lengths
    }
    assert shards == {
        "train": [
            (f"c4-train.{file_format}-00000-of-00002", 2),
            (f"c4-train.{file_format}-00001-of-00002", 1),
        ],
        "validation": [(f"c4-validation.{file_format}-00000-of-00001", 1)],
    }


def test_other_folders_are_none(tmp_path):
    (tmp_path / "a.txt").touch()
    assert load(tmp_path) is None


def test_missing_and_empty_shards(tmp_path):
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, "tfrecord")
    (path / "c4-train.tfrecord-00001-of-00002").unlink()
    assert "1.0.0': shard 'c4-train.tfrecord-00001-of-00002' is missing; " in failure(
        load(path).shards, "train"
    )
    assert [shard.records for shard in load(path).shards("validation")] == [1]
    path = writers.tfds_folder(tmp_path / "2.0.0", {"train": [[b"a"], []]}, "tfrecord")
    assert "c4-train.tfrecord-00001-of-00002: an empty shard, no record in it;" in failure(
        load(path).shards, "train"
    )


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
def test_damaged_metadata(tmp_path, name):
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, "tfrecord")
    whole = (path / name).read_text()
    (path / name).write_text(whole[:40])
    assert f"1.0.0/{name}: not JSON (" in failure(load, path)
    (path / name).write_text("[" + whole + "]")
    assert "1.0.0': features.json or dataset_info.json is damaged (" in failure(load, path)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_folder_cannot_have_code_imported(tmp_path, monkeypatch, hidden):
    """TFDS imports the module of a feature's class, which may lie in the current folder."""
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, "tfrecord")
    named = json.dumps({"type": "evil_module.Feature", "content": {}})
    features = json.loads((path / "features.json").read_text())
    features["featuresDict"]["features"]["text"] = {
        "pythonClassName": "tensorflow_datasets.core.features.text_feature.Text"
        if hidden
        else "evil_module.Feature",
        "jsonFeature": {"json": named},
    }
    (path / "features.json").write_text(json.dumps(features))
    assert "is 'evil_module.Feature', a class that is none of TFDS's own" in failure(load, path)
    assert not (tmp_path / "pwned").exists()


def test_no_text_feature(tmp_path):
    path = writers.tfds_folder(
        tmp_path / "1.0.0", SHARDS, "tfrecord", label=tfds.features.Scalar(np.int64)
    )
    lacking = "1.0.0' has no text feature 'text', found 'label'; give a corpus with one"
    assert lacking in failure(tfds_folders.require_text, load(path))
    path = writers.tfds_folder(
        tmp_path / "2.0.0", SHARDS, "tfrecord", text=tfds.features.Scalar(np.int64)
    )
    assert "has no text feature 'text', found 'text';" in failure(
        tfds_folders.require_text, load(path)
    )


def test_no_splits_and_other_formats(tmp_path):
    path = writers.tfds_folder(tmp_path / "1.0.0", {}, "tfrecord")
    assert "1.0.0' has no splits: its preparation was interrupted" in failure(load, path)
    info = json.loads((path / "dataset_info.json").read_text())
    (path / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "riegeli"}))
    assert "is in TFDS's format 'riegeli'; expected array_record, tfrecord, parquet" in failure(
        load, path
    )
    (path / "dataset_info.json").unlink()
    assert "has no dataset_info.json: not a whole TFDS folder" in failure(load, path)


@pytest.fixture(params=["local", "remote"])
def data_dir(request, tmp_path, monkeypatch):
    """TFDS_DATA_DIR, with c4/en in versions 3.0.1, 3.0.9 and 3.0.10, and 3.1.0 not prepared to the
    end."""
    for version in ("3.0.1", "3.0.9", "3.0.10", "3.1.0"):
        writers.tfds_folder(tmp_path / "c4" / "en" / version, SHARDS, "tfrecord")
    (tmp_path / "c4" / "en" / "3.1.0" / "dataset_info.json").unlink()
    root = writers.remote(tmp_path) if request.param == "remote" else str(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", root)
    return root


def test_newest_or_given_version_is_found(data_dir):
    assert tfds_folders.find("tfds:c4/en") == files.join(data_dir, "c4", "en", "3.0.10")
    assert tfds_folders.find("tfds:c4/en:3.0.1") == files.join(data_dir, "c4", "en", "3.0.1")
    assert tfds_folders.find("some/folder") == "some/folder"


def test_what_is_not_prepared(data_dir):
    parent = files.join(data_dir, "c4", "realnewslike")
    message = failure(tfds_folders.find, "tfds:c4/realnewslike")
    assert f"'tfds:c4/realnewslike' is not prepared in {parent!r} (no such folder)" in message
    assert (
        f"`tfds build c4/realnewslike --file_format=array_record --data_dir={data_dir}`" in message
    )
    found = "found 3.0.1, 3.0.10, 3.0.9, 3.1.0"
    assert f"{files.join(data_dir, 'c4', 'en', '2.0.0')!r} ({found})" in failure(
        tfds_folders.find, "tfds:c4/en:2.0.0"
    )
    assert "(found 3.0.1, " in failure(tfds_folders.find, "tfds:c4/en:3.1.0")
    assert "(found en): prepare it with `tfds build c4 " in failure(tfds_folders.find, "tfds:c4")


def test_home_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = writers.tfds_folder(
        tmp_path / "tensorflow_datasets" / "c4" / "en" / "3.0.1", SHARDS, "parquet"
    )
    assert tfds_folders.find("tfds:c4/en") == str(folder)
    shutil.rmtree(folder.parent)
    assert str(tmp_path / "tensorflow_datasets" / "c4" / "en") in failure(
        tfds_folders.find, "tfds:c4/en"
    )
