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
def test_shards_have_names_and_numbers_of_records(tmp_path, file_format, where):
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, file_format)
    folder = load(path if where == "local" else writers.remote(path))
    assert folder.file_format == file_format
    shards = {}
    for split in folder.lengths:
        shards[split] = []
        for shard in folder.shards(split):
            assert shard.file.size > 0
            shards[split].append((shard.file.name, shard.records))
    assert shards == {
        "train": [
            (f"c4-train.{file_format}-00000-of-00002", 2),
            (f"c4-train.{file_format}-00001-of-00002", 1),
        ],
        "validation": [(f"c4-validation.{file_format}-00000-of-00001", 1)],
    }


def test_other_folders_are_not_loaded(tmp_path):
    (tmp_path / "a.txt").touch()
    assert load(tmp_path) is None


def test_missing_shards_are_refused(tmp_path):
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, "tfrecord")
    (path / "c4-train.tfrecord-00001-of-00002").unlink()
    folder = load(path)
    message = failure(folder.shards, "train")
    assert "1.0.0': shard 'c4-train.tfrecord-00001-of-00002' is missing; " in message
    (shard,) = folder.shards("validation")
    assert shard.records == 1


def test_empty_shards_are_refused(tmp_path):
    path = writers.tfds_folder(tmp_path / "2.0.0", {"train": [[b"a"], []]}, "tfrecord")
    message = failure(load(path).shards, "train")
    assert "c4-train.tfrecord-00001-of-00002: an empty shard, no record in it;" in message


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
def test_damaged_metadata_are_refused(tmp_path, name):
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, "tfrecord")
    metadata = path / name
    whole = metadata.read_text()
    metadata.write_text(whole[:40])
    assert f"1.0.0/{name}: not JSON (" in failure(load, path)
    metadata.write_text(f"[{whole}]")
    assert "1.0.0': features.json or dataset_info.json is damaged (" in failure(load, path)


@pytest.mark.parametrize("hidden", [False, True])
def test_classes_of_other_packages_are_not_imported(tmp_path, monkeypatch, hidden):
    """TFDS itself imports the module of a feature's class, even from the current folder."""
    marker = tmp_path / "pwned"
    (tmp_path / "evil_module.py").write_text(f"open({str(marker)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, "tfrecord")
    own_class = "tensorflow_datasets.core.features.text_feature.Text"
    named = json.dumps({"type": "evil_module.Feature", "content": {}})
    features_path = path / "features.json"
    features = json.loads(features_path.read_text())
    features["featuresDict"]["features"]["text"] = {
        "pythonClassName": own_class if hidden else "evil_module.Feature",
        "jsonFeature": {"json": named},
    }
    features_path.write_text(json.dumps(features))
    message = failure(load, path)
    assert "is 'evil_module.Feature', not a class of TFDS" in message
    assert not marker.exists()


NUMBER = tfds.features.Scalar(np.int64)


def test_folders_without_a_text_feature_are_refused(tmp_path):
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, "tfrecord", label=NUMBER)
    message = failure(tfds_folders.require_text, load(path))
    assert "1.0.0' has no text feature 'text', found 'label'; give a corpus with one" in message


def test_text_features_of_another_type_are_refused(tmp_path):
    path = writers.tfds_folder(tmp_path / "2.0.0", SHARDS, "tfrecord", text=NUMBER)
    message = failure(tfds_folders.require_text, load(path))
    assert "has no text feature 'text', found 'text';" in message


def test_folders_without_splits_are_refused(tmp_path):
    path = writers.tfds_folder(tmp_path / "1.0.0", {}, "tfrecord")
    message = failure(load, path)
    assert "1.0.0' has no splits: its preparation was interrupted" in message


def test_other_file_formats_are_refused(tmp_path):
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, "tfrecord")
    info_path = path / "dataset_info.json"
    info = json.loads(info_path.read_text())
    info["fileFormat"] = "riegeli"
    info_path.write_text(json.dumps(info))
    message = failure(load, path)
    assert "is in TFDS's format 'riegeli'; expected array_record, tfrecord, parquet" in message


def test_folders_without_dataset_info_are_refused(tmp_path):
    path = writers.tfds_folder(tmp_path / "1.0.0", SHARDS, "tfrecord")
    (path / "dataset_info.json").unlink()
    assert "has no dataset_info.json: not a whole TFDS folder" in failure(load, path)


@pytest.fixture(params=["local", "remote"])
def data_dir(request, tmp_path, monkeypatch):
    """TFDS_DATA_DIR, with c4/en in versions 3.0.1, 3.0.9 and 3.0.10, and an unfinished 3.1.0."""
    for version in ("3.0.1", "3.0.9", "3.0.10", "3.1.0"):
        writers.tfds_folder(tmp_path / "c4" / "en" / version, SHARDS, "tfrecord")
    (tmp_path / "c4" / "en" / "3.1.0" / "dataset_info.json").unlink()
    root = writers.remote(tmp_path) if request.param == "remote" else str(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", root)
    return root


def test_the_newest_or_given_version_is_found(data_dir):
    versions = files.join(data_dir, "c4", "en")
    assert tfds_folders.find("tfds:c4/en") == files.join(versions, "3.0.10")
    assert tfds_folders.find("tfds:c4/en:3.0.1") == files.join(versions, "3.0.1")
    assert tfds_folders.find("some/folder") == "some/folder"


def test_unprepared_data_sets_are_refused_with_the_command(data_dir):
    parent = files.join(data_dir, "c4", "realnewslike")
    message = failure(tfds_folders.find, "tfds:c4/realnewslike")
    command = f"tfds build c4/realnewslike --file_format=array_record --data_dir={data_dir}"
    assert f"'tfds:c4/realnewslike' is not prepared in {parent!r} (no such folder)" in message
    assert f"`{command}`" in message
    message = failure(tfds_folders.find, "tfds:c4")
    assert "(found en): prepare it with `tfds build c4 " in message


def test_missing_versions_are_refused_with_the_existing_ones(data_dir):
    path = files.join(data_dir, "c4", "en", "2.0.0")
    message = failure(tfds_folders.find, "tfds:c4/en:2.0.0")
    assert f"{path!r} (found 3.0.1, 3.0.10, 3.0.9, 3.1.0)" in message
    message = failure(tfds_folders.find, "tfds:c4/en:3.1.0")
    assert "(found 3.0.1, " in message


def test_the_default_folder_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    versions = tmp_path / "tensorflow_datasets" / "c4" / "en"
    folder = writers.tfds_folder(versions / "3.0.1", SHARDS, "parquet")
    assert tfds_folders.find("tfds:c4/en") == str(folder)
    shutil.rmtree(versions)
    assert str(versions) in failure(tfds_folders.find, "tfds:c4/en")
