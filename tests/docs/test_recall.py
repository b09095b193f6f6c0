"""The table and the picture of docs/results/recall.md."""

import statistics

import pytest

from docs import generate
from docs.results import recall


def test_seeds_are_those_whose_mean_and_deviation_the_file_has():
    lines = generate.read("recall")
    cells = recall.cells()
    assert sum(map(len, cells.values())) == len(lines)
    for line in lines:
        [cell] = [
            cell
            for cell in cells[line["model"]]
            if (cell.length, cell.width) == (int(line["n"]), int(line["d"]))
        ]
        deviation = float(line["accuracy (%) deviation"])
        assert statistics.stdev(cell.seeds) == pytest.approx(deviation, abs=1e-6)
        assert statistics.mean(cell.seeds) == pytest.approx(float(line["accuracy (%)"]))
        assert cell.median == sorted(cell.seeds)[1]


def test_the_table_shows_every_seed_and_a_guess():
    lines = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in recall.section().splitlines()
    ]
    head, _, *rows, guesses = lines
    assert head[1] == "n = 64, d = 16"
    assert guesses[1:4] == ["25.0"] * 3
    attention = rows[0]
    assert attention[0].startswith("`bert_causal`")
    assert attention[2] == "99, 99, 99"
    assert all(len(row) == len(head) for row in rows)
