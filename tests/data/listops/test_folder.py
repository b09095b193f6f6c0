"""A data set of ListOps on disk: sizes, splits, the same bytes from the same seed, and what is refused."""

import hashlib
import json

import pytest

from gmlp_flax.data.finetuning.sentences import open_sentences
from gmlp_flax.data.listops import folder
from gmlp_flax.data.listops.trees import Grammar
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from tests.data import writers

SIZES, GRAMMAR = (30, 7, 5), Grammar(10, 60)


def checksums(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_sizes():
    assert folder.parse_sizes("paper") == (96_000, 2_000, 2_000) and folder.parse_sizes("30,7,5") == SIZES


def test_splits_that_share_no_tree(tmp_path):
    from gmlp_flax.data.finetuning.glue import LONG_RANGE_TASKS

    told = folder.make(str(tmp_path), SIZES, GRAMMAR)
    texts = []
    for split, size in zip(folder.SPLITS, SIZES, strict=True):
        found = open_sentences(str(tmp_path), LONG_RANGE_TASKS["listops"], "heldout", heldout_split=split)
        assert len(found) == size
        texts += found.first
    assert len(set(texts)) == sum(SIZES) and told == max(len(text.split()) for text in texts)


def test_made_once(tmp_path):
    """A whole folder is left alone, an unfinished one is made anew, one of something else is refused."""
    first = folder.make(str(tmp_path / "a"), SIZES, GRAMMAR)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    assert folder.make(str(tmp_path / "a"), SIZES, GRAMMAR) == first
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    whole = checksums(tmp_path / "a")
    (tmp_path / "a" / "listops.json").unlink()
    (tmp_path / "a" / "basic_train.tsv").write_bytes(b"broken off")
    folder.make(str(tmp_path / "a"), SIZES, GRAMMAR)
    assert checksums(tmp_path / "a") == whole
    with pytest.raises(DataError, match="holds another data set"):
        folder.make(str(tmp_path / "a"), SIZES, GRAMMAR, seed=1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "novel.txt").write_text("x")
    with pytest.raises(DataError, match="holds other files: give a new folder"):
        folder.make(str(tmp_path / "b"), SIZES, GRAMMAR)


def test_a_remote_folder(tmp_path):
    writers.remote(tmp_path)
    address = "memory://listops_folder"
    told = folder.make(address, SIZES, GRAMMAR)
    folder.make(str(tmp_path / "local"), SIZES, GRAMMAR)
    found = {file.name: file.size for file in files.find_files(address)}
    assert found == {path.name: path.stat().st_size for path in (tmp_path / "local").iterdir()}
    assert json.loads(files.read_small(f"{address}/listops.json"))["longest"] == told


@pytest.mark.parametrize("given", ["", "10,5", "10,5,0", "1e3,2,2", "-1,2,3", "99999999999,1,1"])
def test_sizes_that_make_no_sense(given):
    with pytest.raises(DataError, match=f"listops:{given}: expected"):
        folder.parse_sizes(given)


@pytest.mark.parametrize("grammar", [Grammar(500, 501), Grammar(0, 2**21), Grammar(1, 9, 1), Grammar(1, 9, 101)])
def test_grammars_that_make_no_sense(grammar):
    with pytest.raises(DataError, match="expected"):
        folder.make("unused", SIZES, grammar)
