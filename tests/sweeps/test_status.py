"""What --status tells of a sweep's runs."""

import json
import re

from tests.commands.test_sweep import TEXT
from tests.sweeps.test_definition import FIRST, SECOND, sweep


def test_status(trainer):
    """A run that is done, one part way at two steps a second, two that failed; half a line ends the metrics."""
    out = trainer.folder / "out"
    lines = [
        {"step": 100, "loss": 5.0, "tokens_per_second": 0.0},
        {"step": 100, "eval": {"perplexity": 90.0}},
        {"step": 200, "loss": 4.0, "tokens_per_second": 2 * 32 * 64},
    ]
    for run in (FIRST + "0", FIRST + "1"):
        (out / run).mkdir(parents=True)
        (out / run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3')
    (out / (FIRST + "0") / "result.json").write_text('{"step": 500, "eval": {"perplexity": 45.678}}')
    command = f"python -m gmlp_flax.train --workdir={out}/x\n"
    (out / f"{FIRST}1.log").write_text(f"{command}error: no text\n{command}step 100/500\n")
    (out / f"{SECOND}0.log").write_text(f"{command}error: no text\n")
    (out / f"{SECOND}1.log").write_text(f"{command}Traceback (most recent call last):\nKeyError\n")
    code, printed, told = sweep(trainer, "--sweep=@points.py:2", "--status")
    assert code == 0, told
    rows = [re.sub(r"\d:00:\d\d ago", "AGE", line).split() for line in printed]
    assert rows == [
        ["state", "step", "steps", "perplexity", "time", "left", "written"],
        [FIRST + "0", "done", "500", "500", "45.678"],
        [FIRST + "1", "part", "way", "200", "500", "90", "0:02:30", "AGE"],
        [SECOND + "0", "failed", "0", "500"],
        [SECOND + "1", "failed", "0", "500"],
        [SECOND + "0:", "no", "text"],
        [SECOND + "1:", "a", "traceback", "is", "in", f"{out}/{SECOND}1.log"],
        "1 done, 2 failed, 1 part way, 0 not begun".split(),
    ]
    assert not trainer.calls()


def test_status_of_a_sweep_that_chooses(trainer):
    """Of the seeds that do not choose, those that are there are shown."""
    (trainer.folder / "out" / "batch_size=8,seed=1").mkdir(parents=True)
    code, printed, _ = sweep(trainer, f"--config={TEXT}", "--grid=batch_size=8,16", "--seeds=0,1", "--status")
    assert code == 0 and [line.split()[:3] for line in printed[1:-1]] == [
        ["batch_size=8,seed=0", "not", "begun"],
        ["batch_size=8,seed=1", "part", "way"],
        ["batch_size=16,seed=0", "not", "begun"],
    ]
