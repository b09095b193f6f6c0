"""Each mistake is one line that says what to do, with exit code 2, before anything is compiled.

What readers say of damage of every kind is tested beside them, in tests/data and tests/io.
"""

import pytest

from tests import preloaded
from tests.data import writers
from tests.runs.command import assert_done, assert_one_line_error, assert_only_one_line
from tests.training import tiny

TEXTS = [f"{' '.join(tiny.WORDS[i % 9 : i % 30 + 8])} and {i} more" for i in range(60)]
LINES = writers.json_lines(*({"text": text} for text in TEXTS))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--config.data.heldout=nowhere.txt"],
            ["config.data.heldout: nothing at 'nowhere.txt'", "check the path"],
        ),
        (
            ["--config.data.tokenizer=nowhere.model"],
            ["config.data.tokenizer is 'nowhere.model'", "does not exist"],
        ),
        (
            ["--config.model.length=4000"],
            ["tokens, a sequence of length 4000 needs 3998", "config.model.length"],
        ),
        (["--config.model.vocab_size=100"], ["no tokenizer of vocab_size=100"]),
        (
            ["--config.init_from=/nowhere"],
            ["config.init_from is /nowhere", "expected a run folder"],
        ),
    ],
    ids=lambda value: (
        value[0].partition("=")[0].rpartition(".")[2] if value[0].startswith("--") else ""
    ),
)
def test_bad_text_is_one_line(commands, text, tmp_path, flags, words):
    assert_one_line_error(commands(text, *flags, f"--workdir={tmp_path / 'run'}"), *words)


def test_damaged_corpus_is_one_line(commands, text, tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(LINES + b'{"text": "caf\xe9"}\n')
    flags = [f"--config.data.train={tmp_path}/latin.jsonl", f"--config.data.cache={tmp_path}/cache"]
    words = "config.data.train: ", ", line 61: not UTF-8 (byte 0xe9)", "max_bad_records=0"
    assert_only_one_line(commands(text, *flags, f"--workdir={tmp_path / 'run'}"), *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_bad_records_up_to_the_limit_are_skipped(commands, text, tmp_path):
    """They are counted and reported with the first one's place, and the run goes on."""
    (tmp_path / "spoiled.jsonl").write_bytes(LINES + b"[]\n{\n")
    flags = [
        f"--config.data.train={tmp_path}/spoiled.jsonl",
        f"--config.data.cache={tmp_path}/cache",
    ]
    flags += ["--config.steps=1", f"--workdir={tmp_path / 'run'}"]
    result = commands(text, *flags, "--config.data.max_bad_records=2")
    assert_done(result)
    reports = [line for line in result.stderr.splitlines() if "bad record" in line]
    first = f"2 bad records skipped, the first: {tmp_path}/spoiled.jsonl, line 61: found list"
    got = [line.partition(";")[0] for line in reports]
    expected = 2 * [f"{tmp_path}/spoiled.jsonl: {first}"]
    assert got == expected


def test_batch_that_devices_cannot_split(commands, text, tmp_path):
    variables = {"XLA_FLAGS": preloaded.devices(2)}
    result = commands(text, "--config.batch_size=7", f"--workdir={tmp_path / 'run'}", **variables)
    assert_one_line_error(result, "config.batch_size is 7", "2 devices", "set it to 6 or 8")
    result = commands(
        text, "--config.eval.batch_size=3", f"--workdir={tmp_path / 'run'}", **variables
    )
    assert_one_line_error(result, "config.eval.batch_size is 3", "set it to 2 or 4")


def test_unwritable_workdir_is_one_line(commands, text, tmp_path):
    (tmp_path / "file").touch()
    result = commands(text, f"--workdir={tmp_path / 'file' / 'run'}")
    assert_one_line_error(result, f"{tmp_path / 'file' / 'run'} failed", "Not a directory")
