"""The tables of docs/results/recall.md and the CSV files that they are made of."""

import json

from docs import generate
from docs.results import recall
from gmlp_flax.paper import recall as rows
from gmlp_flax.paper.recall import Cell
from gmlp_flax.sweeps import points


def write_run(folder, point, accuracies):
    """A finished run with an evaluation every 300 steps."""
    run = folder / points.name(point)
    run.mkdir(parents=True)
    lines = []
    for number, accuracy in enumerate(accuracies, start=1):
        metrics = {"accuracy": accuracy, "loss": 1.0}
        line = json.dumps({"step": 300 * number, "eval": metrics})
        lines.append(line)
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "result.json").write_text(lines[-1])


def test_finished_cells_become_lines_of_the_files(tmp_path):
    """Cells whose three seeds have ended, at the best rate of their search."""
    finished = Cell("amlp_causal", 64, 32)
    searched = rows.search_points(finished, "cpu")
    for point, accuracy in zip(searched, (0.3, 0.9, 0.5), strict=True):
        write_run(tmp_path / "search", point, [accuracy])
    for point in rows.points(finished, "cpu", 3e-3):
        last_accuracy = 0.5 + 0.125 * point["seed"]
        write_run(tmp_path, point, [0.25, last_accuracy])
    unfinished = Cell("sgu_causal", 64, 32)
    for point in rows.search_points(unfinished, "cpu"):
        write_run(tmp_path / "search", point, [0.25])
    first_seed, *_ = rows.points(unfinished, "cpu", 1e-3)
    write_run(tmp_path, first_seed, [0.25])
    assert list(recall.ends(str(tmp_path))) == [
        ("amlp_causal", "64", "32", "0.003", "0", "50.00", "600"),
        ("amlp_causal", "64", "32", "0.003", "1", "62.50", "600"),
        ("amlp_causal", "64", "32", "0.003", "2", "75.00", "600"),
    ]
    over_steps = list(recall.over_steps(str(tmp_path)))
    assert over_steps[:3] == [
        ("amlp_causal", "0", "300", "25.00"),
        ("amlp_causal", "0", "600", "50.00"),
        ("amlp_causal", "1", "300", "25.00"),
    ]


def test_new_lines_replace_those_of_their_cell_alone(tmp_path, monkeypatch):
    """The cells are sorted as in the tables."""
    monkeypatch.setattr(generate, "DATA", tmp_path)
    titles = ("row", "n", "d", "accuracy (%)")
    attention = ("bert_causal", "64", "32", "99")
    wide = ("sgu_causal", "64", "64", "25")
    narrow = ("sgu_causal", "64", "16", "25")
    better = ("sgu_causal", "64", "64", "26")
    recall.write("recall", titles, [wide, attention], of_cell=3)
    recall.write("recall", titles, [better, narrow], of_cell=3)
    lines = (tmp_path / "recall.csv").read_text().splitlines()
    assert lines[1:] == [",".join(line) for line in (attention, narrow, better)]


def test_every_line_is_a_seed_of_a_cell():
    seeds = 0
    for cells_of_row in recall.cells().values():
        for cell in cells_of_row:
            assert len(cell.seeds) == 3
            assert cell.accuracies == sorted(cell.accuracies)
            assert cell.median == cell.accuracies[1]
            seeds += len(cell.accuracies)
    assert seeds == len(generate.read("recall"))


def cells_of(line):
    """The cells of a line of a table."""
    cells = line.strip("|\n").split("|")
    return [cell.strip() for cell in cells]


def test_the_table_shows_every_seed_and_a_guess():
    head, _, *body, guesses = recall.section().splitlines()
    titles = cells_of(head)
    assert titles[1] == "n = 64, d = 16"
    assert cells_of(guesses)[1:4] == ["25.0", "25.0", "25.0"]
    attention = cells_of(body[0])
    assert attention[0].startswith("`bert_causal`")
    assert attention[2] == "99, 99, 100"
    for line in body:
        assert len(cells_of(line)) == len(titles)


def test_the_table_of_mixers_has_those_at_one_width():
    _, _, first, *others = recall.mixers_section().splitlines()
    assert cells_of(first) == [
        "`bert_causal`, attention, learned positions",
        "99, 99, 100",
        "2,700, 2,400, 1,500",
        "0.003",
    ]
    assert len(others) == 11
