"""A corpus that is prepared first trains as the raw one does."""

import json
from pathlib import Path

import pytest

from tests.runs.command import assert_done, assert_one_line_error, metrics


@pytest.fixture(scope="module")
def prepared(commands, text, tmp_path_factory):
    """Both sides of the corpus of `text`, as `gmlp prepare` makes them."""
    root, corpus = tmp_path_factory.mktemp("prepared"), Path(text.partition(":")[2]) / "corpus.jsonl"
    flags = [str(corpus), "--heldout_share=0.2", f"--cache={root / 'cache'}", "--workers=1"]
    assert_done(commands(*flags, f"--out={root / 'train'}", "--vocab_size=320", command="prepare"))
    flags += [f"--out={root / 'heldout'}", "--side=heldout", f"--tokenizer={root / 'train' / 'tokenizer.model'}"]
    assert_done(commands(*flags, command="prepare"))
    return root


@pytest.mark.smoke
def test_same_metrics_as_from_the_raw_corpus(commands, text, finished, prepared, tmp_path):
    """Every line of the metrics, so every training batch as well."""
    sides = [f"--config.data.{side}={prepared / side}" for side in ("train", "heldout")]
    assert_done(commands(text, *sides, f"--workdir={tmp_path / 'run'}"))
    assert metrics(tmp_path / "run") == metrics(finished)
    assert (tmp_path / "run" / "tokenizer.model").read_bytes() == (finished / "tokenizer.model").read_bytes()
    result = commands(f"--workdir={tmp_path / 'run'}", command="evaluate")
    assert_done(result)
    assert json.loads(result.stdout)["eval"] == json.loads((finished / "result.json").read_text())["eval"]


def test_one_side_is_not_enough(commands, text, prepared, tmp_path):
    result = commands(text, f"--config.data.train={prepared / 'train'}", f"--workdir={tmp_path / 'run'}")
    message = f"config.data.train={prepared / 'train'} holds prepared tokens of one side"
    assert_one_line_error(result, message, "data.heldout")


def test_prepared_with_another_vocabulary_than_the_run(commands, text, finished, prepared, tmp_path):
    """A run cannot go on with tokens of another vocabulary."""
    corpus = Path(text.partition(":")[2]) / "corpus.jsonl"
    flags = [str(corpus), "--vocab_size=310", f"--cache={tmp_path}", f"--out={tmp_path / 'other'}", "--workers=1"]
    assert_done(commands(*flags, command="prepare"))
    result = commands(text, f"--config.data.train={tmp_path / 'other'}", f"--workdir={finished}")
    assert_one_line_error(result, f"config.data.train was '{corpus}'", "use another --workdir")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes((finished / "tokenizer.model").read_bytes())
    result = commands(text, f"--config.data.train={tmp_path / 'other'}", f"--workdir={folder}")
    assert_one_line_error(
        result, f"two different tokenizers: this run's, {folder}/tokenizer.model", f"{tmp_path}/other/tokenizer.model"
    )
