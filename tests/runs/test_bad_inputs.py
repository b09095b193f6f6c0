"""Each user error is one line that says what to do, with exit code 2, before anything is compiled.

The readers' errors for damaged files are tested in tests/data and tests/io.
"""

import pytest

from tests import preloaded
from tests.data import writers
from tests.runs.command import assert_done, assert_one_line_error, assert_only_one_line
from tests.training import tiny


def corpus() -> bytes:
    """60 documents as JSON lines."""
    records = []
    for number in range(60):
        first = number % 9
        stop = number % 30 + 8
        words = " ".join(tiny.WORDS[first:stop])
        records.append({"text": f"{words} and {number} more"})
    return writers.json_lines(*records)


LINES = corpus()


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        pytest.param(
            "--config.data.heldout=missing.txt",
            ["config.data.heldout: nothing at 'missing.txt'", "check the path"],
            id="heldout",
        ),
        pytest.param(
            "--config.data.tokenizer=missing.model",
            ["config.data.tokenizer is 'missing.model'", "does not exist"],
            id="tokenizer",
        ),
        pytest.param(
            "--config.model.length=4000",
            ["tokens, a sequence of length 4000 needs 3998", "config.model.length"],
            id="length",
        ),
        pytest.param(
            "--config.model.vocab_size=100",
            ["no tokenizer of vocab_size=100"],
            id="vocab_size",
        ),
        pytest.param(
            "--config.init_from=/missing",
            ["config.init_from is /missing", "expected a run folder"],
            id="init_from",
        ),
    ],
)
def test_bad_text_is_one_line(commands, text, tmp_path, flag, words):
    result = commands(text, flag, f"--workdir={tmp_path / 'run'}")
    assert_one_line_error(result, *words)


def test_damaged_corpus_is_one_line(commands, text, tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(LINES + b'{"text": "caf\xe9"}\n')
    flags = [f"--config.data.train={tmp_path}/latin.jsonl", f"--config.data.cache={tmp_path}/cache"]
    words = ("config.data.train: ", ", line 61: not UTF-8 (byte 0xe9)", "max_bad_records=0")
    result = commands(text, *flags, f"--workdir={tmp_path / 'run'}")
    assert_only_one_line(result, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_bad_records_up_to_the_limit_are_skipped(commands, text, tmp_path):
    """They are counted and reported with the position of the first one, and the run continues."""
    path = tmp_path / "spoiled.jsonl"
    path.write_bytes(LINES + b"[]\n{\n")
    result = commands(
        text,
        f"--config.data.train={path}",
        f"--config.data.cache={tmp_path}/cache",
        "--config.data.max_bad_records=2",
        "--config.steps=1",
        f"--workdir={tmp_path / 'run'}",
    )
    assert_done(result)
    reports = []
    for line in result.stderr.splitlines():
        if "bad record" in line:
            report, _, _ = line.partition(";")
            reports.append(report)
    first = f"2 bad records skipped, the first: {path}, line 61: found list"
    assert reports == [f"{path}: {first}", f"{path}: {first}"]


def test_batch_that_devices_cannot_split(commands, text, tmp_path):
    workdir = f"--workdir={tmp_path / 'run'}"
    variables = {"XLA_FLAGS": preloaded.devices(2)}
    result = commands(text, "--config.batch_size=7", workdir, **variables)
    assert_one_line_error(result, "config.batch_size is 7", "2 devices", "set it to 6 or 8")
    result = commands(text, "--config.eval.batch_size=3", workdir, **variables)
    assert_one_line_error(result, "config.eval.batch_size is 3", "set it to 2 or 4")


def test_unwritable_workdir_is_one_line(commands, text, tmp_path):
    (tmp_path / "file").touch()
    result = commands(text, f"--workdir={tmp_path / 'file' / 'run'}")
    assert_one_line_error(result, f"{tmp_path / 'file' / 'run'} failed", "Not a directory")
