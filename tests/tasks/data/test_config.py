"""Which key of config.data names the data of a role, how its reader is called, and that errors
name the key."""

import functools

import pytest
from ml_collections import ConfigDict

from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.text_rows import TextRow, TextRows
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.tasks.data import config as data_config
from tests.failures import failure, raised


def config(**data):
    """The keys of config.data that choose data."""
    options = {
        "train": "t",
        "heldout": "",
        "split": "",
        "heldout_split": "",
        "heldout_share": 0.25,
        "search": False,
    }
    return ConfigDict({"data": options | data})


def rows(path: str, split: str, count: int) -> Dataset:
    """A data set of texts, each of which names its path, split and number."""
    texts = []
    for index in range(count):
        text = f"{path} {split} {index}"
        row = TextRow((text,), str(index))
        texts.append(row)
    examples = TextRows(texts)
    return Dataset(path=path, form="rows", examples=examples, split=split)


class Reader:
    """Reads paths with some splits of 40 rows, and records its calls."""

    def __init__(self, *names: str):
        self.names = names
        self.calls: list[tuple[str, bool]] = []

    def __call__(self, path: str, ignore_splits: bool) -> Splits:
        self.calls.append((path, ignore_splits))
        names = [""] if ignore_splits else self.names
        readers = {}
        for name in names:
            readers[name] = functools.partial(rows, path, name, 40)
        return Splits(path, "rows", readers)


@pytest.mark.parametrize(
    ("heldout", "role", "key", "share"),
    [
        ("", TRAIN, "train", 0.25),
        ("", HELDOUT, "train", 0.25),
        ("o", TRAIN, "train", 0.0),
        ("o", HELDOUT, "heldout", 0.0),
    ],
)
def test_role_reads_its_own_path_or_a_share(heldout, role, key, share):
    options = config(heldout=heldout)
    assert data_config.key_of(options, role) == key
    path = data_config.path_of(options, role)
    assert path == options.data[key]
    assert data_config.share_of(options) == share
    shares_split = data_config.role_shares_split(options, role)
    assert shares_split == (key == "train")


@pytest.mark.parametrize(("share", "expected"), [(0.25, -0.25), (0.9, -0.4)])
@pytest.mark.parametrize("heldout", ["", "o"])
def test_search_splits_the_training_data(heldout, share, expected):
    options = config(heldout=heldout, search=True, heldout_share=share)
    for role in (TRAIN, HELDOUT):
        assert data_config.path_of(options, role) == "t"
    assert data_config.share_of(options) == expected


def rows_of(options, role: str) -> list[TextRow]:
    """The rows of a role, if the path has one unnamed split."""
    dataset = data_config.open_split(options, role, Reader(""))
    return dataset.examples.rows


def test_single_unnamed_split_is_shared():
    train = rows_of(config(), TRAIN)
    heldout = rows_of(config(), HELDOUT)
    all_rows = [*train, *heldout]
    different = {row.texts for row in all_rows}
    assert len(different) == 40
    assert len(train) + len(heldout) == 40
    assert 3 < len(heldout) < 20


def test_each_role_reads_its_path():
    read = Reader("")
    data_config.open_split(config(), TRAIN, read)
    data_config.open_split(config(), HELDOUT, read)
    assert read.calls == [("t", False), ("t", False)]


def test_search_holds_out_different_examples_than_a_report():
    reported = set(rows_of(config(), HELDOUT))
    searched = set(rows_of(config(search=True), HELDOUT))
    trained = set(rows_of(config(search=True), TRAIN))
    assert searched
    assert not reported & searched
    assert not reported & trained


@pytest.mark.parametrize(
    ("data", "names", "expected"),
    [
        ({}, ("train", "validation", "test"), ("train", "validation")),
        ({"split": "test"}, ("train", "validation", "test"), ("test", "validation")),
        ({"heldout_split": "test"}, ("train", "validation", "test"), ("train", "test")),
        ({"heldout_split": "dev"}, ("train", "validation"), ("train", "validation")),
        ({"heldout": "o"}, ("train", "validation"), ("train", "validation")),
        ({"heldout": "o"}, ("",), ("", "")),
    ],
)
def test_named_splits_are_read_whole(data, names, expected):
    found = []
    for role in (TRAIN, HELDOUT):
        options = config(**data)
        reader = Reader(*names)
        dataset = data_config.open_split(options, role, reader)
        assert len(dataset) == 40
        found.append(dataset.split)
    assert tuple(found) == expected


def test_held_out_examples_of_a_search_come_from_the_training_split():
    """Even if config.data.heldout_split names another split for a report."""
    options = config(search=True, heldout_split="test")
    heldout = data_config.open_split(options, HELDOUT, Reader("train", "test"))
    assert heldout.split == "train"
    assert 0 < len(heldout) < 40


def test_data_set_may_have_other_default_splits():
    read = Reader("train", "test")
    usual = ("validation", "test")
    dataset = data_config.open_split(config(), HELDOUT, read, "PATH", usual)
    assert dataset.split == "test"


def test_split_all_reads_the_training_path_as_one():
    read = Reader("train", "test")
    heldout = config(split="all", heldout="o")
    data_config.open_split(config(split="all"), TRAIN, read)
    data_config.open_split(config(split="all"), HELDOUT, read)
    data_config.open_split(heldout, TRAIN, read)
    assert read.calls == [("t", True)] * 3
    with pytest.raises(DataError, match="heldout"):
        data_config.open_split(heldout, HELDOUT, read)  # has splits, none called validation
    assert read.calls[3] == ("o", False)


def fail(path: str, ignore_splits: bool) -> Splits:
    raise DataError(f"no data at {path}")


def test_errors_name_the_key():
    message = failure(data_config.open_split, config(), HELDOUT, fail)
    assert message == "config.data.train: no data at t"
    message = failure(data_config.open_split, config(heldout="o"), HELDOUT, fail)
    assert message == "config.data.heldout: no data at o"
    message = failure(data_config.open_split, config(train=""), TRAIN, fail, "tfds:NAME")
    assert "--config.data.train=tfds:NAME" in message


def test_error_may_name_another_key():
    def read() -> None:
        with data_config.errors_name("data.train", "model.length"):
            raise DataError("too short")

    assert failure(read) == "config.data.train: too short (config.model.length)"


def test_key_is_named_once():
    """The innermost `errors_name` block decides."""

    def read() -> None:
        with data_config.errors_name("data.heldout"), data_config.errors_name("data.train"):
            raise DataError("too short")

    assert failure(read) == "config.data.train: too short"


def test_warning_is_a_line_on_stderr(capsys):
    data_config.warn(TRAIN, "examples", "3 are cut")
    assert capsys.readouterr().err == "train examples: 3 are cut\n"


def test_search_with_a_large_held_out_share_keeps_training_data():
    options = config(search=True, heldout_share=0.9)
    assert len(rows_of(options, TRAIN)) >= 1
    assert len(rows_of(options, HELDOUT)) < 25


def test_run_folder_is_not_read_as_data(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    options = config(train=str(tmp_path))
    message = failure(data_config.open_split, options, TRAIN, Reader("train"))
    assert "config.data.train" in message
    assert "run.json" in message


@pytest.mark.parametrize("key", ["train", "heldout"])
def test_run_folder_inside_its_data_is_refused(tmp_path, monkeypatch, key):
    """By an absolute or relative path, or through a link."""
    photos = tmp_path / "photos"
    photos.mkdir()
    (tmp_path / "link").symlink_to(photos)
    monkeypatch.chdir(tmp_path)
    for path in (str(photos), "photos", "photos/", "link"):
        for workdir in (str(photos / "run"), "photos/a/run", "link/run"):
            chosen = config(**{key: path})
            message = raised(RunError, data_config.require_outside_data, workdir, chosen)
            assert f"config.data.{key}={path}" in message
    workdirs = (str(tmp_path / "run"), "photos_run", str(photos))
    for workdir in workdirs:
        data_config.require_outside_data(workdir, config(**{key: "photos"}))
    data_config.require_outside_data("embedded/run", config(train=data_config.EMBEDDED))
    remote = config(train="gs://bucket/data")
    data_config.require_outside_data("gs://bucket/data-runs/1", remote)
    message = raised(RunError, data_config.require_outside_data, "gs://bucket/data/run", remote)
    assert "gs://" in message
