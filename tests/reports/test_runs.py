"""Finding the runs of a table's rows, and refusing runs that cannot share a table."""

import json
import os

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError
from gmlp_flax.reports.runs import find, find_finetuned
from tests.data import writers

GATES = ("split", "additive")


def config(gate="split", **changes):
    """A config of a small model."""
    made = config_lib.default(task=changes.get("task", "masked_lm"))
    made.model.gate = gate
    made.batch_size = 4
    made.steps = 8
    made.update_from_flattened_dict(changes)
    return made


def write_run(folder, made, evaluations=((4, 9.0), (8, 7.0)), finished=True, metric="perplexity"):
    """Writes a run folder as training does, without its checkpoints."""
    os.makedirs(folder)
    (folder / "config.json").write_text(config_lib.to_json(made))
    lines = [{"step": 2, "loss": 3.0}]
    for step, value in evaluations:
        lines.append({"step": step, "eval": {metric: value}})
    content = writers.json_lines(*lines)
    (folder / "metrics.jsonl").write_bytes(content)
    if finished:
        result = json.dumps(lines[-1])
        (folder / "result.json").write_text(result)


ROWS = {gate: config(gate) for gate in GATES}


def test_runs_are_identified_by_model_and_not_by_folder(tmp_path):
    write_run(tmp_path / "x", config("additive", seed=1))
    write_run(tmp_path / "y", config("split"), finished=False)
    write_run(tmp_path / "z", config("linear"))  # no row
    (tmp_path / "notes.txt").write_text("not a run")
    first, second = find(str(tmp_path), ROWS)
    assert first.row == "split"
    assert first.config.seed == 0
    assert not first.finished
    assert second.row == "additive"
    assert second.config.seed == 1
    assert second.finished
    expected = [(4 * 4 * 128, 9.0), (8 * 4 * 128, 7.0)]
    assert first.curve("perplexity") == expected
    assert first.curve("top1") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1, "steps": 9}, "steps is 8 in .*a and 9 in .*b"),
        ({"seed": 1, "data.tokenizer": "other"}, "data.tokenizer is '' in .*a and 'other'"),
        (
            {"seed": 1, "optimizer.lr_multipliers": ("norm=2",)},
            "optimizer.lr_multipliers is .* in .*a and .*norm=2",
        ),
        ({}, "a and .*b are both the row split with seed 0"),
    ],
)
def test_runs_that_cannot_share_a_table_are_refused(tmp_path, changes, message):
    write_run(tmp_path / "a", config())
    write_run(tmp_path / "b", config(**changes))
    with pytest.raises(RunError, match=message):
        find(str(tmp_path), ROWS)


def test_tokenizers_must_be_the_same(tmp_path):
    """Even if their configs agree: the data that they were trained on may have changed."""
    for seed, name in enumerate("abc"):
        write_run(tmp_path / name, config(seed=seed))
        content = b"others" if name == "c" else b"pieces"
        (tmp_path / name / "tokenizer.model").write_bytes(content)
    members = find(f"{tmp_path}/[ab]", ROWS)
    assert len(members) == 2
    with pytest.raises(RunError, match=r"a/tokenizer.model and .*c/tokenizer.model differ"):
        find(str(tmp_path), ROWS)


def test_keys_that_may_differ(tmp_path):
    """Keys about how a run is executed; and between rows, the learning rate and its multipliers, which
    are selected for each row."""
    write_run(tmp_path / "a", config())
    execution = {"log.every": 5, "mesh.fsdp": 2, "model.remat": "none"}
    other_seed = config(seed=1, **execution)
    write_run(tmp_path / "b", other_seed)
    rates = {"optimizer.learning_rate": 0.5, "optimizer.lr_multipliers": ("norm=2",)}
    write_run(tmp_path / "c", config("additive", **rates))
    members = find(str(tmp_path), ROWS)
    assert len(members) == 3


def tuned(gate="split", **changes):
    """A config of a model finetuned on SST-2."""
    finetuning = {
        "task": "text_classification",
        "init_from": "anywhere",
        "model.length": 64,
    }
    return config(gate, **(finetuning | changes))


def test_finetuned_runs_may_differ_in_row_rate_seed_and_batch(tmp_path):
    folder = tmp_path / "finetuned" / "sst2"
    write_run(folder / "a", tuned())
    other_row = {"optimizer.learning_rate": 0.5, "init_from": "elsewhere"}
    other_config = tuned("additive", seed=1, **other_row)
    write_run(folder / "b", other_config)
    other_batch = {"optimizer.warmup": 1, "log.every": 7}
    other_config = tuned(batch_size=8, steps=4, **other_batch)
    write_run(folder / "c", other_config)
    other_config = tuned(**{"glue.task": "rte", "model.length": 32})
    write_run(folder / "d", other_config)
    write_run(folder / "e", tuned(init_from="another seed's"))
    write_run(folder / "random", tuned(init_parameters=False))
    found = find_finetuned(str(tmp_path), ROWS)
    got = {}
    for row, runs in found.items():
        got[row] = len(runs)
    assert got == {"split": 5, "additive": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "sst2/a and .*sst2/b are both sst2 from anywhere with seed 0: leave one out"),
        ({"seed": 1, "steps": 9}, "steps is 8 in .*a and 9 in .*b"),
        (
            {"gate": "additive", "init_from": "elsewhere", "model.dropout": 0.1},
            "model.dropout is 0.0 in .*a and 0.1",
        ),
        ({"seed": 1, "model.pool": "cls"}, "model.pool is 'mean' in .*a and 'cls'"),
    ],
)
def test_finetuned_runs_that_cannot_share_a_table_are_refused(tmp_path, changes, message):
    finetuned = tmp_path / "finetuned" / "sst2"
    write_run(finetuned / "a", tuned())
    write_run(finetuned / "b", tuned(**changes))
    with pytest.raises(RunError, match=message):
        find_finetuned(str(tmp_path), ROWS)


def test_rows_of_one_model_are_distinguished_by_steps(tmp_path):
    """Finetuned models are assigned to a row by the run from which they started. If that run is gone,
    no row is guessed."""
    rows = ROWS | {"split longer": config(steps=16)}
    write_run(tmp_path / "a", config())
    write_run(tmp_path / "b", config(steps=16))
    write_run(tmp_path / "c", config(steps=24))  # no row
    first, second = find(str(tmp_path), rows)
    assert first.row == "split"
    assert first.config.steps == 8
    assert second.row == "split longer"
    assert second.config.steps == 16
    with pytest.raises(RunError, match="the rows split and again have the same model and steps"):
        find(str(tmp_path), ROWS | {"again": config(seed=1)})
    finetuned = tmp_path / "finetuned" / "sst2"
    for name in ("a", "b"):
        start = tmp_path / name
        started = tuned(init_from=str(start))
        write_run(finetuned / name, started)
    missing = tmp_path / "d"
    started = tuned(init_from=str(missing), steps=8)
    write_run(finetuned / "gone", started)
    found = find_finetuned(str(tmp_path), rows)
    names = {}
    for row, runs in found.items():
        names[row] = [os.path.basename(run.path) for run in runs]
    expected = {"split": ["a"], "additive": [], "split longer": ["b"]}
    assert names == expected
    other_share = config("additive", **{"data.heldout_share": 0.2})
    write_run(tmp_path / "e", other_share)
    with pytest.raises(RunError, match="data.heldout_share is 0.05 in .*a and 0.2"):
        find(str(tmp_path), rows)
