"""How far runs are, by what stands in their folders and logs."""

import json
from pathlib import Path

from gmlp_flax.sweeps import definition, states
from gmlp_flax.sweeps.progress import Work
from tests.commands.test_sweep import TEXT
from tests.sweeps.test_definition import FIRST, SECOND

# As a user's block ends a run, with the note that JAX adds.
TRACEBACK = """Traceback (most recent call last):
  File "block.py", line 3, in __call__
    raise KeyError('bad')
KeyError: 'bad'
--------------------
For simplicity, JAX has removed its internal frames from the traceback.
"""


def write_steps(folder: Path, step: int, name: str) -> None:
    """A run folder with metrics up to a step, and an empty file of this name."""
    folder.mkdir(parents=True)
    line = json.dumps({"step": step, "loss": 4.0})
    (folder / "metrics.jsonl").write_text(f"{line}\n")
    (folder / name).write_text("{}")


def test_counts_the_remaining_steps(trainer):
    """Of seven each: none of a run that has ended early, four of one that has taken three."""
    out = trainer.folder / "out"
    points = ({"seed": 0}, {"seed": 1}, {"seed": 2})
    sweep = definition.define(TEXT, points, {"steps": "7"}, str(out))
    write_steps(out / "seed=0", 5, "result.json")
    write_steps(out / "seed=1", 3, "config.json")
    assert states.work_of(sweep) == Work(3, 21, 0 + 4 + 7)


def test_status(trainer):
    """A run that is done, one part way, two that failed; half a line ends the metrics."""
    out = trainer.folder / "out"
    evaluated = json.dumps({"step": 100, "eval": {"perplexity": 90.0}})
    trained = json.dumps({"step": 200, "loss": 4.0})
    metrics = f'{evaluated}\n{trained}\n{{"step": 3'
    for seed in (0, 1):
        run = out / f"{FIRST}{seed}"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(metrics)
    result = out / f"{FIRST}0" / "result.json"
    result.write_text('{"step": 500, "eval": {"perplexity": 45.678}}')
    command = f"python -m gmlp_flax.train --workdir={out}/x\n"
    (out / f"{FIRST}1.log").write_text(f"{command}error: no text\n{command}step 100/500\n")
    (out / f"{SECOND}0.log").write_text(f"{command}error: no text\n")
    (out / f"{SECOND}1.log").write_text(f"{command}{TRACEBACK}")
    code, printed, errors = trainer.sweep("--sweep=@points.py:2", "--status")
    assert code == 0, errors
    assert printed == [
        f"{FIRST}0: done, perplexity 45.678",
        f"{FIRST}1: step 200 of 500",
        f"{SECOND}0: failed: no text",
        f"{SECOND}1: failed: KeyError: 'bad'",
        "1 of 4 runs are done",
    ]
    result.write_text('{"eval": {"perplexity": Infinity}}')
    _, printed, _ = trainer.sweep("--sweep=@points.py:2", "--status", "--json")
    status = json.loads("\n".join(printed))
    assert status["done"] == 1
    assert status["total"] == 4
    assert status["metric"] == "perplexity"
    runs = status["runs"]
    assert runs[0] == {
        "name": f"{FIRST}0",
        "state": "done",
        "step": 200,
        "steps": 500,
        "eval": {"perplexity": None},
        "error": "",
    }
    assert [run["state"] for run in runs] == ["done", "unfinished", "failed", "failed"]
    assert runs[2]["error"] == "no text"
    code, _, errors = trainer.sweep("--sweep=@points.py:2", "--json")
    assert code == 2
    assert "--status" in errors[-1]
    assert not trainer.calls()


def test_status_of_a_sweep_that_chooses(trainer):
    """Only runs that have begun are shown."""
    (trainer.folder / "out" / "batch_size=8,seed=1").mkdir(parents=True)
    code, printed, _ = trainer.sweep(
        f"--config={TEXT}", "--grid=batch_size=8,16", "--seeds=0,1", "--status"
    )
    assert code == 0
    assert printed[0].startswith("batch_size=8,seed=1: step 0 of ")
    assert len(printed) == 2
