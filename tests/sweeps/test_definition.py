"""Sweep files, --sweep.KEY, shares of a sweep, and --print; a stand-in for the trainer answers at
once.

Sweeps over a grid are in tests/commands/test_sweep.py, whole runs in tests/runs/test_sweep.py.
"""

import shlex

import pytest

from tests.commands.test_sweep import TEXT

IMAGE = "configs/quickstart_image.py"
FILE = "--sweep=@points.py"
CONFIG = f"--config={TEXT}"
FIRST = "quickstart_text,seed="
SECOND = "quickstart_text,batch_size=8,seed="


def test_all_points_of_a_file_are_trained(trainer):
    trainer.plan({FIRST + "0": 10.0, FIRST + "1": 12.0, SECOND + "0": 30.0})
    code, printed, messages = trainer.sweep(
        "--sweep=@points.py:2", "--config.data.train=books.jsonl", "--config.steps=7"
    )
    assert code == 0, messages
    expected = [FIRST + "0", FIRST + "1", SECOND + "0", SECOND + "1"]
    assert trainer.names() == expected
    assert flags_of_calls(trainer)[2] == [
        f"--config={TEXT}",
        "--config.data.train=books.jsonl",
        "--config.steps=7",
        "--config.batch_size=8",
        "--config.seed=0",
    ]
    assert [line for line in printed if line.startswith("| quickstart")] == [
        "| quickstart_text | 2 | 11.0 | 11.0 | 10.0 | 12.0 | 10.0 12.0 |",
        "| quickstart_text,batch_size=8 | 2 | 20.0 | 20.0 | 10.0 | 30.0 | 30.0 10.0 |",
    ]
    written = trainer.report()
    assert written["config"] == f"{trainer.folder}/points.py:2"
    assert written["chosen"] is None
    assert [row["point"] for row in written["points"]] == [
        {"config": TEXT},
        {"config": TEXT, "batch_size": 8},
    ]
    _, second_point = written["points"]
    seeds = [run["seed"] for run in second_point["runs"]]
    assert seeds == [0, 1]


def test_trusted_modules_reach_the_runs(trainer):
    """Which may begin from a run whose config names a class of them."""
    code, _, messages = trainer.sweep(
        f"--config={TEXT}", "--seeds=0", "--trust=json", "--trust", "csv"
    )
    assert code == 0, messages
    assert flags_of_calls(trainer)[0] == [
        f"--config={TEXT}",
        "--config.seed=0",
        "--trust=json",
        "--trust=csv",
    ]


def flags_of_calls(trainer) -> list[list[str]]:
    """The flags of each call after its module and its folder."""
    flags = []
    for call in trainer.calls():
        _, _, _, *flags_of_call = call
        flags.append(flags_of_call)
    return flags


def test_failed_points_do_not_stop_the_others(trainer):
    """A run that fails, and one whose metric is no number; the same command tries them again, and
    those alone."""
    trainer.plan({FIRST + "0": "fails", SECOND + "0": "stops"})
    code, _, messages = trainer.sweep("--sweep=@points.py:2")
    out = trainer.folder / "out"
    assert code == 1
    assert len(trainer.names()) == 4
    assert messages[-3:] == [
        "2 of 4 runs failed; the same command tries them again:",
        f"the run {out}/{FIRST}0 failed (the reason of {FIRST}0): its output is in {out}/{FIRST}0.log",
        f"the run {out}/{SECOND}0 was stopped before its end: give the same command again to resume it",
    ]
    written = trainer.report()
    failed = [FIRST + "0", SECOND + "0"]
    assert written["failed"] == failed
    for point in written["points"]:
        assert len(point["runs"]) == 1
    assert len(written["points"]) == 2
    nan_result = {"perplexity": float("nan")}
    trainer.plan({FIRST + "0": nan_result})
    code, _, messages = trainer.sweep("--sweep=@points.py:2")
    assert code == 1
    resumed = [FIRST + "0", SECOND + "0"]
    assert trainer.names()[4:] == resumed
    assert messages[-1].startswith(f"the run {FIRST}0 ended with perplexity nan")


def test_failure_reason_is_printed_at_once_and_at_the_end(trainer):
    """A table of nothing is not printed."""
    trainer.executable.write_text("#!/bin/sh\necho error: no such text\nexit 2\n")
    code, printed, messages = trainer.sweep("--sweep=@points.py:2")
    out = trainer.folder / "out"
    failed = trainer.report()["failed"]
    reasons = []
    for name in failed:
        reasons.append(f"the run {out}/{name} failed (no such text)")
    assert code == 1
    assert printed == []
    assert len(reasons) == 4
    assert messages[4].startswith("4 of 4 runs failed")
    parts = (messages[:4], messages[5:])
    for lines in parts:
        for line, reason in zip(lines, reasons, strict=True):
            assert line.startswith(reason), messages


def test_keys_as_flags(trainer):
    """The product, with the seed among it, all of it trained; a failing run does not end it."""
    trainer.plan({"optimizer.learning_rate=1e-3,seed=3": "fails"})
    rates = ("--sweep.lr=1e-3,2e-3", "--sweep.seed=3,4")
    code, _, messages = trainer.sweep(f"--config={TEXT}", *rates)
    names = []
    for rate in ("1e-3", "2e-3"):
        for seed in (3, 4):
            names.append(f"optimizer.learning_rate={rate},seed={seed}")
    assert code == 1, messages
    assert trainer.names() == names, messages
    assert flags_of_calls(trainer)[1] == [
        f"--config={TEXT}",
        "--config.optimizer.learning_rate=1e-3",
        "--config.seed=4",
    ]
    _, second_rate = trainer.report()["points"]
    assert len(second_rate["runs"]) == 2


def test_printed_commands(trainer):
    code, printed, _ = trainer.sweep(
        "--sweep=@points.py", "--print", "--config.data.train=my books.jsonl"
    )
    out = trainer.folder / "out"
    assert code == 0
    assert not out.exists()
    assert not trainer.calls()
    train = ["python", "-m", "gmlp_flax.train", f"--config={TEXT}"]
    data = "--config.data.train=my books.jsonl"
    got = [shlex.split(line) for line in printed]
    expected = [
        [*train, f"--workdir={out}/{FIRST}0", data, "--config.seed=0"],
        [*train, f"--workdir={out}/{SECOND}0", data, "--config.batch_size=8", "--config.seed=0"],
    ]
    assert got == expected


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("get_config = 1", "KeyError: 'get_sweep'"),
        ("def get_sweep(): pass", "TypeError: "),
        ("def get_sweep(): return [{'seed': 1}]", "the point {'seed': 1} names no config"),
        (
            "def get_sweep(): return [{'config': 'a.py', 'batch_siz': 1}]",
            "the sweep: there is no config key",
        ),
        ("def get_sweep(:", "SyntaxError: "),
    ],
)
def test_wrong_sweep_files_are_one_line(trainer, code, message):
    (trainer.folder / "wrong.py").write_text(code)
    error = trainer.refused("--sweep=@wrong.py")
    assert error.startswith(f"{trainer.folder}/wrong.py: {message}")


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (
            [{"init_from": "a/b"}, {"init_from": "a b"}],
            "two points are one run, or share the name of its folder: ",
        ),
        ([{}, {"steps": 500}], "two points are one run, or share the name of its folder: "),
        ([{}, {"steps": 0}], "config.steps is 0: expected at least 1"),
        ([{}, {"config": "nowhere.py"}], "there is no config file nowhere.py"),
        ([{}, {"config": IMAGE}], "the points differ in their held-out metric (perplexity, top1)"),
    ],
)
def test_wrong_points_are_one_line_before_any_run(trainer, points, message):
    points = [{"config": TEXT} | point for point in points]
    (trainer.folder / "wrong.py").write_text(f"def get_sweep(): return {points!r}")
    assert trainer.refused("--sweep=@wrong.py").startswith(message)
    assert not (trainer.folder / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sweep=@no.py:cpu"], "there is no sweep file @no.py; expected one of alternatives, "),
        ([FILE, CONFIG], f"{CONFIG} and {FILE} exclude each other"),
        ([FILE, "--choose=best"], "--choose=best goes with --grid"),
        ([CONFIG, "--seeds="], "--seeds is missing"),
        ([FILE, "--seeds=1"], "--seeds sets the key seed: give it there alone"),
        ([FILE, "--sweep.seed=1"], "the sweep sets seed twice"),
        ([FILE, "--config.batch_size=4"], "--config.batch_size and the sweep set the same key"),
        ([FILE, "--dry_run"], "--dry_run is for an engine"),
        ([FILE, "--out="], "--out is missing"),
        (
            [CONFIG, "--sweep.lr=1,2", "--sweep.optimizer.learning_rate=3"],
            "the sweep sets optimizer.learning_rate",
        ),
        (
            [CONFIG, "--grid=batch_size=4,8", "--print"],
            "--print and --on cannot choose the best point",
        ),
        ([CONFIG, "--seeds=0,x"], "--seeds=0,x: expected numbers"),
        ([CONFIG, "--config.seed=1"], "--seeds sets the key seed"),
        (["--sweep.lr=1"], "--config is missing"),
    ],
)
def test_mistakes_are_one_line_before_any_run(trainer, options, message):
    error = trainer.refused(*options)
    expected = message.replace("@", f"{trainer.folder}/")
    assert error.startswith(expected)
    assert not (trainer.folder / "out").exists()
