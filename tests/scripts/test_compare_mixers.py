"""How mixers are compared: which runs, in what order, what of them fails; a stand-in for the trainer answers at once.

Whole runs are in tests/runs/test_compare_mixers.py.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax import cli
from gmlp_flax.models.sizes import PUBLISHED

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path("scripts/compare_mixers.py")

# Called as Python is: notes what it was called with, then does what plan.json says for the folder's name.
TRAINER = """#!{python}
import json, os, sys, time
flags = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--"))
with open("{folder}/calls.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
name = os.path.basename(flags["workdir"])
does = json.load(open("{folder}/plan.json")).get(name, 10.0)
print(name, "says", does)
if does == "hangs":
    open("{folder}/hanging", "w").close()
    time.sleep(60)
if does == "fails":
    while "{waits}" and not os.path.exists("{folder}/hanging"):
        time.sleep(0.01)
    raise SystemExit(2)
if does != "stops":
    os.makedirs(flags["workdir"], exist_ok=True)
    json.dump({{"eval": {{"perplexity": does}}}}, open(flags["workdir"] + "/result.json", "w"))
"""


class Trainer:
    """A stand-in that gives each run the perplexity of `plan`, by the run's name, or does what stands there."""

    def __init__(self, folder: Path, waits: bool = False):
        self.folder, self.executable = folder, folder / "python"
        self.executable.write_text(TRAINER.format(python=sys.executable, folder=folder, waits="waits" * waits))
        self.executable.chmod(0o755)
        self.plan()

    def plan(self, **does: float | str) -> None:
        names = {name.replace("_of_", "-"): value for name, value in does.items()}
        (self.folder / "plan.json").write_text(json.dumps(names))

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def names(self) -> list[str]:
        return [Path(flag).name for call in self.calls() for flag in call if flag.startswith("--workdir=")]

    def command(self, *options: str) -> list[str]:
        return ["scripts/compare_mixers.py", "--data=books.jsonl", f"--out={self.folder / 'out'}", *options]

    def log(self, name: str) -> Path:
        return self.folder / "out" / f"{name}.log"


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


@pytest.fixture
def compare(monkeypatch, capsys):
    """Runs the command in this process: its exit code, standard output, and standard error by lines."""
    handler = signal.getsignal(signal.SIGTERM)

    def call(trainer: Trainer, *options: str) -> tuple[int, str, list[str]]:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(trainer.executable))
            patch.setattr(sys, "argv", trainer.command(*options))
            try:
                cli.explained(SCRIPT["main"])
                code = 0
            except SystemExit as exit_:
                code = exit_.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err.splitlines()

    yield call
    signal.signal(signal.SIGTERM, handler)


def table(trainer: Trainer) -> list[dict]:
    return json.loads((trainer.folder / "out" / "table.json").read_text())


def test_table(trainer, compare):
    trainer.plan(sgu_of_0=40.0, sgu_of_1=42.0, mixer_of_0=41.0, mixer_of_1=39.5, linear_of_0=30.0, linear_of_1=31.0)
    code, printed, errors = compare(trainer, "--models=sgu,mixer,linear")
    assert (code, errors) == (0, [])
    paper = {name: PUBLISHED[name].perplexity for name in ("sgu", "mixer", "linear")}
    assert paper["sgu"] < paper["linear"] < paper["mixer"]
    assert table(trainer) == [
        {"model": "linear", "rate": None, "perplexities": [30.0, 31.0], "mean": 30.5, "paper": paper["linear"]},
        {"model": "mixer", "rate": None, "perplexities": [41.0, 39.5], "mean": 40.25, "paper": paper["mixer"]},
        {"model": "sgu", "rate": None, "perplexities": [40.0, 42.0], "mean": 41.0, "paper": paper["sgu"]},
    ]
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert lines == [
        "", "model perplexity lowest highest paper rate", f"linear 30.50 30.00 31.00 {paper['linear']:.2f}",
        f"mixer 40.25 39.50 41.00 {paper['mixer']:.2f}", f"sgu 41.00 40.00 42.00 {paper['sgu']:.2f}",
        "sgu < linear: is reversed", "sgu < mixer: is inside the seeds' spread", "linear < mixer: holds",
    ]


@given(st.lists(st.lists(st.floats(1, 9), min_size=1, max_size=3), min_size=3, max_size=3))
def test_every_pair_of_the_papers_is_judged_once(perplexities):
    """An ordering holds where every seed of the one is below every seed of the other."""
    models = ("sgu", "linear", "mixer")  # As the paper orders them.
    rows = [
        {"model": model, "rate": None, "perplexities": each, "mean": sum(each), "paper": PUBLISHED[model].perplexity}
        for model, each in zip(models, perplexities, strict=True)
    ]
    rows.append({"model": "none", "rate": None, "perplexities": [1.0], "mean": 1.0, "paper": None})
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        SCRIPT["show"](rows[::-1])
    expected = []
    for (better, low), (worse, high) in itertools.combinations(zip(models, perplexities, strict=True), 2):
        pairs = list(itertools.product(low, high))
        verdict = "holds" if all(a < b for a, b in pairs) else "is reversed" if all(a > b for a, b in pairs) else (
            "is inside the seeds' spread")
        expected.append(f"  {better} < {worse}: {verdict}")
    assert [line for line in printed.getvalue().splitlines() if line.startswith("  ")] == expected


def test_what_each_run_is(trainer, compare):
    """Which command, in which order: the flags given, the run's own after them."""
    assert compare(trainer, "--models=sgu,mixer", "--seeds=3,4", "--", "--config.steps=7")[0] == 0
    assert trainer.names() == ["sgu-3", "mixer-3", "sgu-4", "mixer-4"]
    assert trainer.calls()[1] == [
        "-m", "gmlp_flax.train", "--config=configs/c4_ablation.py:mixer,scale=small",
        f"--workdir={trainer.folder}/out/mixer-3", f"--config.data.train={os.getcwd()}/books.jsonl", "--config.steps=7",
        "--config.seed=3",
    ]
    assert shlex.split(trainer.log("mixer-3").read_text().splitlines()[0])[1:] == trainer.calls()[1]
    assert trainer.log("mixer-3").read_text().splitlines()[1] == "mixer-3 says 10.0"


def test_the_best_rate_of_each_model(trainer, compare):
    trainer.plan(**{"probe_of_sgu_of_1e-3": 50.0, "probe_of_sgu_of_2e-3": 40.0, "probe_of_mixer_of_1e-3": 60.0,
                    "probe_of_mixer_of_2e-3": 60.0})
    options = ["--models=sgu,mixer", "--seeds=0", "--rates=1e-3,2e-3", "--probe_steps=5", "--", "--config.steps=7"]
    code, printed, _ = compare(trainer, *options)
    assert code == 0 and [" ".join(line.split()) for line in printed.splitlines()[:2]] == [
        "sgu 1e-3: 50.0 2e-3: 40.0", "mixer 1e-3: 60.0 2e-3: 60.0",
    ]
    probes = [f"probe-{model}-{rate}" for model in ("sgu", "mixer") for rate in ("1e-3", "2e-3")]
    assert trainer.names() == [*probes, "sgu-0", "mixer-0"]
    assert trainer.calls()[1][-3:] == ["--config.optimizer.learning_rate=2e-3", "--config.steps=5", "--config.seed=100"]
    assert trainer.calls()[4][-3:] == ["--config.steps=7", "--config.seed=0", "--config.optimizer.learning_rate=2e-3"]
    assert {row["model"]: row["rate"] for row in table(trainer)} == {"sgu": "2e-3", "mixer": "1e-3"}


def test_what_is_finished_is_not_run_again(trainer, compare):
    options = ["--models=sgu,mixer", "--seeds=0", "--rates=1e-3"]
    first = compare(trainer, *options)
    assert compare(trainer, *options) == first and len(trainer.calls()) == 4
    # More of the same: what is there stays.
    assert compare(trainer, "--models=sgu,mixer,linear", "--seeds=0,1", "--rates=1e-3")[0] == 0
    assert trainer.names()[4:] == ["probe-linear-1e-3", "linear-0", "sgu-1", "mixer-1", "linear-1"]


@pytest.mark.parametrize("jobs", [1, 3])
def test_names_given_twice_run_once(trainer, compare, jobs):
    """Two trainers in one folder would spoil each other's checkpoints."""
    assert compare(trainer, "--models=sgu,sgu", "--seeds=0,0", "--rates=1e-3,1e-3", f"--jobs={jobs}")[0] == 0
    assert trainer.names() == ["probe-sgu-1e-3", "sgu-0"]
    assert table(trainer)[0]["perplexities"] == [10.0]


def test_failing_run_ends_the_comparison(trainer, compare):
    trainer.plan(mixer_of_0="fails")
    code, printed, errors = compare(trainer, "--models=sgu,mixer,linear", "--seeds=0,1,2,3")
    log = trainer.log("mixer-0")
    assert (code, printed) == (2, "")
    assert errors == [f"error: the run {trainer.folder}/out/mixer-0 failed: its output is in {log}"]
    assert "mixer-0 says fails" in log.read_text() and not (trainer.folder / "out" / "table.json").exists()
    # One more may have begun before the failure was seen.
    assert trainer.names()[:2] == ["sgu-0", "mixer-0"] and len(trainer.names()) <= 3
    trainer.plan()
    assert compare(trainer, "--models=sgu,mixer,linear", "--seeds=0")[0] == 0
    assert trainer.names().count("sgu-0") == 1 and trainer.names().count("mixer-0") == 2


def test_failing_run_ends_those_beside_it(tmp_path, compare):
    """Though it is the second of the table, and the first would go on for long."""
    trainer = Trainer(tmp_path, waits=True)
    trainer.plan(sgu_of_0="hangs", mixer_of_0="fails")
    begin = time.monotonic()
    code, _, errors = compare(trainer, "--models=sgu,mixer,linear", "--seeds=0", "--jobs=2")
    log = trainer.log("mixer-0")
    assert code == 2 and errors == [f"error: the run {tmp_path}/out/mixer-0 failed: its output is in {log}"]
    assert time.monotonic() - begin < 30


def test_run_that_something_else_stopped(trainer, compare):
    """A trainer that is told to stop saves and ends well, without a result."""
    trainer.plan(sgu_of_0="stops")
    code, _, errors = compare(trainer, "--models=sgu", "--seeds=0")
    stopped = f"error: the run {trainer.folder}/out/sgu-0 was stopped before its end: the same command again goes on"
    assert (code, errors) == (2, [stopped])


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_ends_all_runs(trainer, name):
    trainer.plan(sgu_of_0="hangs")
    argv = trainer.command("--models=sgu,mixer")
    program = (f"import runpy, sys; sys.executable = {str(trainer.executable)!r}; sys.argv = {argv!r}; "
               "runpy.run_path(sys.argv[0], run_name='__main__')")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment, **pipes)
    deadline = time.monotonic() + 60
    while not (trainer.folder / "hanging").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    printed, errors = process.communicate(timeout=30)
    assert (process.returncode, printed, errors) == (130, "", "interrupted\n")
    assert trainer.names() == ["sgu-0"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--models=sgo", "argument --models: the config's argument is 'sgo'; did you mean 'sgu'?"),
        ("--models=sgu,", "argument --models: the config's argument is '': expected one of bert, bert_rel, "),
        ("--models=gmlp_72", "argument --models: gmlp_72 has no scale=small: expected one of bert, bert_rel, "),
        ("--models=gmlp_s", "argument --models: the config's argument is 'gmlp_s'"),
        ("--jobs=0", "--jobs=0: expected a positive number"),
        ("--seeds=0,b", "argument --seeds: invalid"),
        ("--job_count=2", "unrecognized arguments: --job_count=2"),
    ],
)
def test_mistakes_are_one_line_before_any_run(trainer, compare, option, message):
    code, printed, errors = compare(trainer, option)
    assert (code, printed, len(errors)) == (2, "", 1)
    assert errors[0].startswith(f"error: {message}")
    assert not trainer.calls() and not (trainer.folder / "out").exists()
