"""The files of a report."""

from __future__ import annotations

import csv

from tests.analysis.test_language import gather, write_runs


def test_files_of_a_report(tmp_path):
    write_runs(tmp_path / "runs")
    made = gather("table3", tmp_path / "runs")
    assert made.write(str(tmp_path / "table3")) == str(tmp_path / "table3" / "index.html")
    files = {path.name: path for path in (tmp_path / "table3").iterdir()}
    assert set(files) == {"table.md", "table.csv", "curves.png", "curves.svg", "index.html"}
    assert files["curves.png"].read_bytes().startswith(b"\x89PNG")
    rows = list(csv.reader(files["table.csv"].read_text().splitlines()))
    assert rows[0][0] == "model" and len(rows) == 10
    assert "| sgu | 0.65864 | 31 | 30 | 32 | 2 | 4.35 | 26.65 | 0.008 |" in files["table.md"].read_text()
    page = files["index.html"].read_text()
    assert "<title>multiplicative: 36 after 1,843,200 tokens</title>" in page
    before = {name: path.read_bytes() for name, path in files.items() if not name.endswith("png")}
    gather("table3", tmp_path / "runs").write(str(tmp_path / "table3"))
    assert before == {name: files[name].read_bytes() for name in before}
