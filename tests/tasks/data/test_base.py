"""The files of a run, and what all task data share: batches of hosts, lines, summaries."""

import json

import numpy as np
import pytest
from ml_collections import ConfigDict

from gmlp_flax.data import pipeline
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.images.examples import ArrayImages
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.tasks.data.base import RunFiles, TaskData, names_in
from tests.failures import failure, raised


def data_config(**changes):
    """The keys that batches depend on."""
    options = {
        "seed": 0,
        "batch_size": 4,
        "eval": {"batch_size": 0},
        "data": {"workers": 0, "train": "t", "heldout": ""},
    }
    return ConfigDict(options | changes)


class Numbers(TaskData):
    """The numbers from 0 on: 10 to train on, 7 held out."""

    def examples(self, role):
        count = 10 if role == TRAIN else 7
        return [{"x": np.int32(number)} for number in range(count)]


class Drawn(TaskData):
    """Twelve images with a data set."""

    def dataset(self, role):
        images = np.zeros((12, 2, 2, 1), np.uint8)
        labels = np.arange(12, dtype=np.int32) % 3 // 2
        return Dataset(
            path="drawn",
            form="drawn images",
            examples=ArrayImages(images),
            split="test",
            classes=("cat", "dog"),
            labels=labels,
            notes=("a note", "another"),
        )


def numbers_of(batches, steps: int) -> list[list[int]]:
    """The numbers of some batches, which are then closed."""
    numbers = []
    with batches:
        for _ in range(steps):
            batch = next(batches)
            numbers.append(batch["x"].tolist())
    return numbers


@pytest.mark.parametrize(
    ("name", "content", "own_content"),
    [
        ("a", b"inherited", None),
        ("b", b"own", b"own"),
        ("c", b"folder", b"folder"),
        ("d", b"inherited", None),
        ("e", None, None),
    ],
)
def test_files_of_the_run_folder_precede_configured_and_inherited_ones(
    tmp_path, name, content, own_content
):
    own = {"b": b"own", "c": b"own"}
    inherited = dict.fromkeys("abcd", b"inherited")
    (tmp_path / "c").write_bytes(b"folder")
    files = RunFiles(str(tmp_path), own, inherited)
    assert files.read(name) == content
    assert files.read_local(name) == own_content
    assert files.path(name) == str(tmp_path / name)


def test_nothing_is_read_from_disk_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "classes.json").write_text('["a", "b"]')
    assert RunFiles().read("classes.json") is None
    assert RunFiles().names("classes.json") == ()
    local = RunFiles(local={"classes.json": b'["c"]'})
    assert local.names("classes.json") == ("c",)


def test_names_are_read_from_a_list_or_the_labels_of_an_object(tmp_path):
    (tmp_path / "list.json").write_text('["b", "a"]')
    (tmp_path / "labels.json").write_text('{"task": "own", "labels": ["x", "y"]}')
    files = RunFiles(str(tmp_path))
    assert files.names("list.json") == ("b", "a")
    assert files.names("labels.json") == ("x", "y")
    assert files.names("none.json") == ()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[",
        b"[]",
        b"{}",
        b"null",
        b'"names"',
        b"[1, 2]",
        b'["a", null]',
        b'{"labels": "ab"}',
        '["ü"]'.encode("latin-1"),
        '["a"]'.encode("utf-16"),
    ],
)
def test_damaged_list_of_names_is_refused_with_its_path(content, tmp_path):
    path = tmp_path / "classes.json"
    path.write_bytes(content)
    files = RunFiles(str(tmp_path))
    assert str(path) in failure(files.names, "classes.json")
    message = failure(names_in, content, "of a checkpoint")
    assert message.startswith("of a checkpoint")


def test_training_batches_are_consecutive():
    data = Numbers(data_config())
    whole = numbers_of(data.train_batches(0, 0, 1), 5)
    counts = np.bincount(np.concatenate(whole))
    assert counts.tolist() == [2] * 10  # two epochs
    resumed = numbers_of(data.train_batches(3, 0, 1), 2)
    assert resumed == whole[3:]
    assert data.training_examples() == 10


def test_hosts_split_each_training_batch():
    data = Numbers(data_config())
    whole = numbers_of(data.train_batches(0, 0, 1), 5)
    of_first_host = numbers_of(data.train_batches(0, 0, 2), 5)
    of_second_host = numbers_of(data.train_batches(0, 1, 2), 5)
    for first, second, batch in zip(of_first_host, of_second_host, whole, strict=True):
        assert first + second == batch


def test_training_batches_depend_on_the_seed():
    first = Numbers(data_config())
    second = Numbers(data_config(seed=1))
    batches = numbers_of(first.train_batches(0, 0, 1), 5)
    assert numbers_of(second.train_batches(0, 0, 1), 5) != batches


@pytest.mark.parametrize(
    ("eval_size", "shares", "size"),
    [
        (0, 1, 4),
        (3, 1, 3),
        (100, 1, 7),
        (100, 4, 8),
        (100, 2, 8),
    ],
)
def test_evaluation_batches_contain_each_example_once(eval_size, shares, size):
    data = Numbers(data_config(eval={"batch_size": eval_size}))
    assert data.evaluation_batch_size(shares) == size
    numbers = []
    with data.evaluation_batches(0, 1, shares) as batches:
        for batch in batches:
            assert len(batch["x"]) == size
            numbers += real_numbers(batch)
    assert numbers == list(range(7))
    assert data.evaluation_examples() == 7


def real_numbers(batch) -> list[int]:
    """Those of a batch whose weight is 1; the others have weight 0."""
    weights = batch["weight"]
    assert set(weights) <= {0, 1}
    return batch["x"][weights == 1].tolist()


def test_hosts_score_different_examples():
    data = Numbers(data_config())
    numbers = []
    for host in (0, 1):
        with data.evaluation_batches(host, 2, 2) as batches:
            for batch in batches:
                numbers += real_numbers(batch)
    assert sorted(numbers) == list(range(7))


def test_batch_that_hosts_cannot_split_is_refused():
    data = Numbers(data_config(batch_size=5))
    message = raised(DataError, data.train_batches, 0, 0, 2)
    assert "batch_size=5" in message


class Doubled(Numbers):
    """Numbers of which each batch is doubled when it is read."""

    def finish(self, hosts):
        return pipeline.unchanged if hosts > 1 else double


def double(batch):
    doubled = 2 * batch["x"]
    return {**batch, "x": doubled}


def test_defaults_of_data_without_a_data_set():
    data = Numbers(data_config())
    assert data.dataset(TRAIN) is None
    assert data.lines(TRAIN) == data.notes() == []
    assert data.fingerprint(TRAIN) == {}
    assert data.assets() == {}
    assert data.tokens(TRAIN) is None
    assert data.labelled(HELDOUT)[3] == {"x": 3}
    summary = data.summary(HELDOUT)
    assert summary.form == "Numbers"
    assert summary.examples == 7
    assert summary.classes == {}
    assert summary.shown[-1] == "x 6"


def test_lines_and_summary_of_a_data_set():
    data = Drawn(data_config())
    first, *notes = data.lines(HELDOUT)
    for fact in ("heldout", "drawn images", "'test'", "12 images", "cat (8)", "dog (4)"):
        assert fact in first
    assert notes == ["a note", "another"]
    summary = data.summary(TRAIN)
    assert summary.path == "drawn"
    assert summary.split == "test"
    assert summary.examples == 12
    assert summary.classes == {"cat": 8, "dog": 4}
    assert summary.notes == ("a note", "another")
    assert len(summary.shown) == 3
    fingerprint = data.fingerprint(TRAIN)
    assert fingerprint
    assert fingerprint == data.dataset(TRAIN).fingerprint


def test_training_batches_are_finished_when_they_are_read():
    data = Numbers(data_config())
    finished_data = Doubled(data_config())
    plain = numbers_of(data.train_batches(0, 0, 1), 2)
    doubled = numbers_of(finished_data.train_batches(0, 0, 1), 2)
    expected = 2 * np.array(plain)
    assert doubled == expected.tolist()


@pytest.mark.parametrize(("hosts", "expected"), [(1, [0, 2, 4, 6]), (2, [0, 2])])
def test_evaluation_batches_are_finished_when_they_are_read(hosts, expected):
    data = Doubled(data_config())
    with data.evaluation_batches(0, hosts) as batches:
        batch = next(batches)
        assert batch["x"].tolist() == expected


def test_inspection_has_both_roles():
    inspection = Drawn(data_config()).inspect()
    assert inspection.train.role == TRAIN
    assert inspection.heldout.role == HELDOUT
    assert inspection.notes == ()


def test_data_without_examples_are_refused_by_name():
    data = TaskData(data_config())
    assert "`examples(role)`" in raised(ConfigError, data.examples, TRAIN)


def test_data_without_rows_are_refused_by_name():
    message = raised(RunError, TaskData.row, data_config(), ["a"], 1, "data/0")
    assert "a path" in message


def test_names_written_to_a_run_are_read_back(tmp_path):
    names = ("ü", "a b", "0")
    content = json.dumps(names, indent=1)
    (tmp_path / "names.json").write_bytes(content.encode())
    assert RunFiles(str(tmp_path)).names("names.json") == names
