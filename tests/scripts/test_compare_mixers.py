"""How mixers are compared: which runs, in what order, what of them fails; a stand-in for the trainer answers at once.

Whole runs are in tests/runs/test_compare_mixers.py.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import os
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gmlp_flax.models.sizes import PUBLISHED
from tests.scripts.stand_in import Trainer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend("scripts")  # Scripts import each other by name.
    return importlib.import_module("compare_mixers")


@pytest.fixture
def compare(script, monkeypatch, capsys):
    """Runs the command in this process: its exit code, standard output, and standard error by lines."""
    return lambda trainer, *options: trainer.call(script.main, command(trainer, *options), monkeypatch, capsys)


def command(trainer: Trainer, *options: str) -> list[str]:
    return ["scripts/compare_mixers.py", "--data=books.jsonl", f"--out={trainer.folder / 'out'}", *options]


def table(trainer: Trainer) -> list[dict]:
    return json.loads((trainer.folder / "out" / "table.json").read_text())


def test_table(trainer, compare):
    trainer.plan({"sgu-0": 40.0, "sgu-1": 42.0, "mixer-0": 41.0, "mixer-1": 39.5, "linear-0": 30.0, "linear-1": 31.0})
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
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_pair_of_the_papers_is_judged_once(script, perplexities):
    """An ordering holds where every seed of the one is below every seed of the other."""
    models = ("sgu", "linear", "mixer")  # As the paper orders them.
    rows = [
        {"model": model, "rate": None, "perplexities": each, "mean": sum(each), "paper": PUBLISHED[model].perplexity}
        for model, each in zip(models, perplexities, strict=True)
    ]
    rows.append({"model": "none", "rate": None, "perplexities": [1.0], "mean": 1.0, "paper": None})
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        script.show(rows[::-1])
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
        "-m", "gmlp_flax.train", f"--workdir={trainer.folder}/out/mixer-3",
        f"--config={ROOT}/configs/c4_ablation.py:mixer,scale=small", f"--config.data.train={os.getcwd()}/books.jsonl",
        "--config.steps=7", "--config.seed=3",
    ]
    assert shlex.split(trainer.log("mixer-3").read_text().splitlines()[0])[1:] == trainer.calls()[1]
    assert trainer.log("mixer-3").read_text().splitlines()[1] == "mixer-3 says 10.0"


def test_the_best_rate_of_each_model(trainer, compare):
    trainer.plan({"probe-sgu-1e-3": 50.0, "probe-sgu-2e-3": 40.0, "probe-mixer-1e-3": 60.0, "probe-mixer-2e-3": 60.0})
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
    trainer.plan({"mixer-0": "fails"})
    code, printed, errors = compare(trainer, "--models=sgu,mixer,linear", "--seeds=0,1,2,3")
    log = trainer.log("mixer-0")
    assert (code, printed) == (2, "")
    assert errors == [f"error: the run {trainer.folder}/out/mixer-0 failed: its output is in {log}"]
    assert "mixer-0 says fails" in log.read_text() and not (trainer.folder / "out" / "table.json").exists()
    # One more may have begun before the failure was seen.
    assert trainer.names()[:2] == ["sgu-0", "mixer-0"] and len(trainer.names()) <= 3
    trainer.plan({})
    assert compare(trainer, "--models=sgu,mixer,linear", "--seeds=0")[0] == 0
    assert trainer.names().count("sgu-0") == 1 and trainer.names().count("mixer-0") == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--models=sgo", "argument --models: the config's argument is 'sgo'; did you mean 'sgu'?"),
        ("--models=sgu,", "argument --models: the config's argument is '': expected one of bert, bert_rel, "),
        ("--models=thin_24", "argument --models: thin_24 has no scale=small: expected one of bert, bert_rel, "),
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
