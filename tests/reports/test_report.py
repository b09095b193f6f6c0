"""The files of a report."""

from __future__ import annotations

import csv

from gmlp_flax.reports.claims import HOLDS, Claim
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Setting
from gmlp_flax.reports.table import Table
from tests.reports.test_language_models import gather, write_runs


def test_files_of_a_report(tmp_path):
    write_runs(tmp_path / "runs")
    made = gather("table3", tmp_path / "runs")
    assert made.write(str(tmp_path / "table3")) == str(tmp_path / "table3" / "index.html")
    files = {path.name: path for path in (tmp_path / "table3").iterdir()}
    figures = {f"{name}.{kind}" for name in ("curves", "correlation") for kind in ("png", "svg", "pdf", "csv")}
    assert set(files) == figures | {"table.md", "table.csv", "index.html", "plotly.min.js"}
    assert files["curves.png"].read_bytes()[16:20] == (650).to_bytes(4, "big")  # a paper's column, 200 dpi
    rows = list(csv.reader(files["table.csv"].read_text().splitlines()))
    assert rows[0][0] == "model" and len(rows) == 5
    assert "| sgu | 0.659 | 31.0 ± 1.4 | 2 | 4.35 | +26.6 | 0.008 |" in files["table.md"].read_text()
    assert files["curves.csv"].read_text().splitlines()[1].startswith("mixer,,921600,70.0")
    before = {name: path.read_bytes() for name, path in files.items()}
    gather("table3", tmp_path / "runs").write(str(tmp_path / "table3"))
    assert before == {name: files[name].read_bytes() for name in before}


def test_the_charts_library_can_be_elsewhere(tmp_path):
    write_runs(tmp_path / "runs")
    gather("table3", tmp_path / "runs").write(str(tmp_path / "site" / "table3"), library="../plotly.min.js")
    assert not (tmp_path / "site" / "table3" / "plotly.min.js").exists()
    assert '<script src="../plotly.min.js">' in (tmp_path / "site" / "table3" / "index.html").read_text()


def test_all_that_is_said():
    setting = Setting("cpu", "sgu", [("steps", "9", "100")])
    made = Report("A", Table((), ()), [Claim("a < b", HOLDS, "since 3 tokens")], [], setting, ["a note"])
    assert made.sentences() == [
        "The paper's 1 orderings: 1 hold for every pair of seeds, 0 are reversed for every pair, 0 are inside the "
        "seeds' spread.",
        "a < b holds; since 3 tokens.", "Scale cpu. Scaled down for sgu: steps 9 (paper: 100).", "a note",
    ]
    assert Setting("paper", "sgu").sentence() == "Scale paper: the paper's setting."
