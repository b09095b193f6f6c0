"""Tables made of run folders: their numbers, and what they say of the paper's claims."""

from __future__ import annotations

import json

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import catalogue, runs
from gmlp_flax.training import warm_start
from tests.reports.test_runs import write_run

PERPLEXITIES = {  # of two seeds, in the middle and at the end
    "sgu": ((50.0, 30.0), (52.0, 32.0)),
    "multiplicative": ((49.0, 35.0), (50.0, 36.0)),  # ahead of sgu in the middle
    "linear": ((60.0, 31.0), (61.0, 45.0)),  # its best seed between sgu's two
    "mixer": ((70.0, 20.0),),  # the paper has it last
}


def write_runs(folder, name="table3", perplexities=PERPLEXITIES, finished=True):
    """Runs of a report's rows at the small scale, with these held-out perplexities."""
    rows = TABLES[name].configs("cpu")
    for row, seeds in perplexities.items():
        for seed, (middle, end) in enumerate(seeds):
            made = rows[row].copy_and_resolve_references()
            made.seed, made.data.train = seed, "books.jsonl"
            write_run(folder / f"{row}-{seed}", made, ((450, middle), (900, end)), finished)


def gather(name, folder):
    rows = TABLES[name].configs("cpu")
    return catalogue.of_runs(name, runs.find(str(folder), rows), "cpu", runs.find_finetuned(str(folder), rows))


def test_table_3(tmp_path):
    write_runs(tmp_path)
    made = gather("table3", tmp_path)
    rows = {row[0]: dict(zip(made.table.columns[1:], row[1:], strict=True)) for row in made.table.rows}
    sgu = rows["sgu"]
    assert (sgu["perplexity"], sgu["lowest"], sgu["highest"], sgu["seeds"]) == (31.0, 30.0, 32.0, 2)
    assert (sgu["paper"], sgu["difference"]) == (4.35, pytest.approx(31 - 4.35))
    assert sgu["rate"] == TABLES["table3"].config("sgu", "cpu").optimizer.learning_rate
    assert sgu["M parameters"] == pytest.approx(0.6586, abs=1e-4)
    assert rows["bert"]["seeds"] == 0 and rows["bert"]["perplexity"] is None and rows["bert"]["paper"] == 4.37
    assert "sgu < multiplicative holds; the means have this order from 1,843,200 tokens on." in made.notes
    assert "sgu < linear is inside the seeds' spread; the means have this order from 921,600 tokens on." in made.notes
    assert "linear < mixer is reversed." in made.notes
    # Ranks: ours mixer 1, sgu 2, multiplicative 3, linear 4; the paper's 4, 1, 2, 3: 1 - 6 * 12 / (4 * 15).
    assert "Spearman's rank correlation with the paper's column: -0.20 over 4 models." in made.notes
    assert "steps 900 (paper: 125000)" in made.notes[0] and "model.vocab_size 2000 (paper: 32000)" in made.notes[0]
    assert not any("bert" in note or "Not finished" in note for note in made.notes)


def test_half_finished_runs_are_named(tmp_path):
    write_runs(tmp_path, perplexities={"sgu": ((50.0, 30.0),)}, finished=False)
    write_runs(tmp_path, perplexities={"linear": ((50.0, 30.0),)})
    made = gather("table3", tmp_path)
    assert "Not finished: sgu seed 0 (step 900 of 900)." in made.notes


def test_table_4_fits_power_laws(tmp_path):
    rows = TABLES["table4"].configs("cpu")
    perplexities = {row: ((2 * end, float(end)),) for row, end in
                    {"gmlp_18": 50, "gmlp_36": 45, "gmlp_72": 40, "transformer_6": 60, "transformer_12": 50}.items()}
    assert perplexities.keys() < rows.keys()
    write_runs(tmp_path, "table4", perplexities)
    made = gather("table4", tmp_path)
    assert set(made.figures) == {"curves", "scaling"}
    [ours] = [note for note in made.notes if note.startswith("gMLP: perplexity is proportional to parameters ** -")]
    assert "95 % interval" in ours
    [two] = [note for note in made.notes if note.startswith("Transformer: ")]
    assert "two points, no interval" in two
    [papers] = [note for note in made.notes if note.startswith("Transformer in the paper: ")]
    assert "** -0.20" in papers


def write_finetuned(folder, row, accuracies, init_from="anywhere", pretrained="table4"):
    """Runs of a model finetuned on SST-2, a seed an accuracy."""
    start = TABLES[pretrained].config(row, "cpu")
    for seed, accuracy in enumerate(accuracies):
        made = config_lib.from_file("configs/finetune_glue.py", "sst2,scale=small")
        made = warm_start.inherit_model(made, start)
        made.seed, made.init_from = seed, str(init_from)
        path = folder / "finetuned" / f"sst2-{row}" / f"seed={seed}"
        write_run(path, made)
        (path / "metrics.jsonl").write_text(json.dumps({"step": 2, "eval": {"accuracy": accuracy}}) + "\n")


def test_figure_7_has_two_axes(tmp_path):
    """Depth, and data: the same model after more steps is a row of its own, as is what was finetuned from it."""
    ends = {
        "gmlp_18": (60.0, 0.6), "gmlp_36": (50.0, 0.65), "gmlp_36,data=2": (40.0, 0.7), "gmlp_36,data=4": (30.0, 0.8),
    }
    write_runs(tmp_path, "figure7", {row: ((2 * end, end),) for row, (end, _) in ends.items()})
    for row, (_, accuracy) in ends.items():
        write_finetuned(tmp_path, row, [accuracy], init_from=tmp_path / f"{row}-0", pretrained="figure7")
    made = gather("figure7", tmp_path)
    rows = {row[0]: dict(zip(made.table.columns, row, strict=True)) for row in made.table.rows}
    assert len(rows) == 11 + 9
    for row, (end, accuracy) in ends.items():
        assert (rows[row]["perplexity"], rows[row]["SST-2"]) == (end, pytest.approx(100 * accuracy))
    assert rows["gmlp_36,data=4"]["paper"] is None and rows["gmlp_36,data=8"]["seeds"] == 0
    [axis] = made.figures["transfer"].axes
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines}
    assert lines["gMLP"] == ([-60, -50], pytest.approx([60, 65]))
    assert lines["gMLP, more data"] == ([-50, -40, -30], pytest.approx([65, 70, 80]))
    # More data is none of the models whose perplexity is fitted over parameters.
    assert "two points, no interval" in next(note for note in made.notes if note.startswith("gMLP: "))


def test_finetuned_runs_stand_beside_the_papers(tmp_path):
    write_runs(tmp_path, "table4", {"gmlp_18": ((60.0, 50.0),), "gmlp_36": ((60.0, 40.0),)})
    for row, accuracies in {"gmlp_18": (0.6, 0.7, 0.65), "gmlp_36": (0.8,)}.items():
        write_finetuned(tmp_path, row, accuracies)
    random = config_lib.load(str(tmp_path / "finetuned" / "sst2-gmlp_18" / "seed=0" / "config.json"))
    random.init_parameters = False  # not of the pretrained model, and better than all that are
    write_run(tmp_path / "finetuned" / "sst2-gmlp_18" / "random", random)
    line = json.dumps({"step": 2, "eval": {"accuracy": 0.99}})
    (tmp_path / "finetuned" / "sst2-gmlp_18" / "random" / "metrics.jsonl").write_text(line + "\n")
    made = gather("table4", tmp_path)
    rows = {row[0]: dict(zip(made.table.columns, row, strict=True)) for row in made.table.rows}
    assert (rows["gmlp_18"]["SST-2"], rows["gmlp_18"]["paper's SST-2"]) == (pytest.approx(65), 91.2)
    assert rows["gmlp_36"]["SST-2"] == pytest.approx(80) and rows["gmlp_36"]["MNLI-m"] is None
    assert rows["transformer_6"]["SST-2"] is None and rows["transformer_6"]["paper's MNLI-m"] == 81.5
    assert "SST-2: rank correlation with the paper's column 1.00 over 2 models." in made.notes
    assert set(made.figures) == {"curves", "scaling", "transfer"} and len(made.figures["scaling"].axes) == 2
