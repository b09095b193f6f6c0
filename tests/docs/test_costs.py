"""The table of costs on which-mixer.md."""

import json

import pytest

from docs import generate
from docs.results import costs
from gmlp_flax.paper.alternatives import ROWS


def measurement(row, tokens, seconds, size):
    """What `gmlp benchmark mixers` writes."""
    shared = {"row": row, "tokens": tokens, "batch": 2}
    time = shared | {"figure": "seconds", "values": seconds, "median": sorted(seconds)[1]}
    memory = shared | {"figure": "bytes", "values": [size], "median": size}
    return [time, memory]


@pytest.fixture
def runs(tmp_path):
    """A folder of measurements of two rows, of which one was only compiled at 8,192 tokens."""
    folder = tmp_path / "runs" / "costs"
    folder.mkdir(parents=True)
    for tokens in (128, 1024, 8192):
        twice = (tokens / 1024) ** 2
        steps = {
            "sgu": measurement("sgu", tokens, [1.5 * twice, 2.0 * twice, 3.0 * twice], 4e6),
            "modern": measurement("modern", tokens, [0.1, 0.2, 0.4], tokens * 1e3),
        }
        if tokens == 8192:
            del steps["modern"][0]
        for row, entries in steps.items():
            (folder / f"{row}-{tokens}.json").write_text(json.dumps(entries))
    return folder.parent


def cells_of(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_measurements_become_a_file_and_a_table(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "DATA", tmp_path)
    costs.write(str(runs))
    lines = (tmp_path / costs.FILE).read_text().splitlines()
    assert lines[0] == "row,tokens,batch,median_seconds,lowest,highest,bytes"
    assert "sgu,1024,2,2.0000,1.5000,3.0000,4000000" in lines
    assert "modern,8192,2,,,,8192000" in lines
    _, _, sgu, modern = costs.section().splitlines()
    # 2 s for 2 x 1,024 tokens are 977 ms for 1,000; with 8 times the tokens, 8 times that
    times = ["122", "977", "7,812", "n^2.00"]
    assert cells_of(sgu) == ["`sgu`", "gMLP", *times, "4", "4", "n^0.00"]
    assert cells_of(modern)[2:] == ["781", "98", "", "", "1", "8", "n^1.00"]


def test_every_row_was_measured_at_the_lengths_of_the_table():
    measured = generate.costs()
    assert set(measured) == set(ROWS)
    for row, by_length in measured.items():
        assert by_length.keys() >= {*costs.TIMES, *costs.MEMORY}, row
