"""Finding the runs of a table's rows, and refusing what cannot stand in one table."""

from __future__ import annotations

import json
import os

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.analysis import gathering
from gmlp_flax.training.errors import RunError

GATES = ("split", "additive")


def config(gate="split", **changes):
    """A small model's config."""
    made = config_lib.default()
    made.model.gate, made.batch_size, made.steps = gate, 4, 8
    made.update_from_flattened_dict(changes)
    return made


def write_run(folder, made, evaluations=((4, 9.0), (8, 7.0)), finished=True):
    """A run folder as training leaves it, without its checkpoints."""
    os.makedirs(folder)
    (folder / "config.json").write_text(config_lib.to_json(made))
    lines = [{"step": 2, "loss": 3.0}, *({"step": step, "eval": {"perplexity": value}} for step, value in evaluations)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        result = {"step": evaluations[-1][0], "eval": {"perplexity": evaluations[-1][1]}}
        (folder / "result.json").write_text(json.dumps(result))


ROWS = {gate: config(gate) for gate in GATES}


def test_runs_are_known_by_their_models_whatever_their_folders_are_called(tmp_path):
    write_run(tmp_path / "x", config("additive", seed=1))
    write_run(tmp_path / "y", config("split"), finished=False)
    write_run(tmp_path / "z", config("linear"))  # no row
    (tmp_path / "notes.txt").write_text("not a run")
    found = gathering.find(str(tmp_path), ROWS)
    assert [(run.row, run.config.seed, run.finished) for run in found] == [("split", 0, False), ("additive", 1, True)]
    assert found[0].curve("perplexity") == [(4 * 4 * 128, 9.0), (8 * 4 * 128, 7.0)]
    assert found[0].curve("top1") == []


def test_a_pattern_names_runs_or_folders_of_them(tmp_path):
    write_run(tmp_path / "a" / "split-0", config())
    write_run(tmp_path / "b" / "split-1", config(seed=1))
    write_run(tmp_path / "b" / "probe-2", config(seed=2, steps=4))
    assert len(gathering.find(f"{tmp_path}/*/split-*", ROWS)) == 2
    assert len(gathering.find(f"{tmp_path}/a", ROWS)) == 1


@pytest.mark.parametrize(("changes", "message"), [
    ({"seed": 1, "steps": 9}, "runs of different configs: steps is 8 in .*a and 9 in .*b: give runs that differ"),
    ({"seed": 1, "data.heldout_share": 0.2}, "data.heldout_share is 0.05 in .*a and 0.2"),
    ({"seed": 1, "optimizer.learning_rate": 0.5}, "optimizer.learning_rate is 0.001 in .*a and 0.5"),
    ({}, "a and .*b are both the row split with seed 0: leave one out"),
])
def test_what_cannot_stand_in_one_table(tmp_path, changes, message):
    write_run(tmp_path / "a", config())
    write_run(tmp_path / "b", config(**changes))
    with pytest.raises(RunError, match=message):
        gathering.find(str(tmp_path), ROWS)


def test_what_may_differ(tmp_path):
    """How a run was run; and between rows, the rate that was chosen for each."""
    write_run(tmp_path / "a", config())
    write_run(tmp_path / "b", config(seed=1, **{"log.every": 5, "mesh.fsdp": 2, "model.remat": "none"}))
    write_run(tmp_path / "c", config("additive", **{"optimizer.learning_rate": 0.5}))
    assert len(gathering.find(str(tmp_path), ROWS)) == 3


def test_no_run_of_any_row(tmp_path):
    write_run(tmp_path / "z", config("linear"))
    for pattern in (str(tmp_path), f"{tmp_path}/none"):
        with pytest.raises(RunError, match="holds no run of split, additive: give a folder of their run folders"):
            gathering.find(pattern, ROWS)
