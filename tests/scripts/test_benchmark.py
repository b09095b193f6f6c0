"""The benchmark's arithmetic and its quick parts; how fast the machine is stays untested."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys

import pytest

benchmark = runpy.run_path("scripts/benchmark.py")


def test_candidates_run_in_turn_each_warmed_up():
    order = []
    seconds = benchmark["measure"]({name: lambda name=name: order.append(name) for name in "ab"}, repeats=2)
    assert order == ["a", "a", "b", "b", "a", "a", "b", "b"]
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2}


def test_row_is_median_and_range():
    row = benchmark["row"]("x", [3.0, 1.0, 2.0], "s", "< 4")
    assert (row["median"], row["min"], row["max"], row["goal"]) == (2.0, 1.0, 3.0, "< 4")
    assert benchmark["ratios"]([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]


def test_unknown_part_is_one_line():
    done = subprocess.run([sys.executable, "scripts/benchmark.py", "steps"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "there is no part 'steps'; choose from step, toeplitz" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_compile_part_writes_json(tmp_path):
    command = [sys.executable, "scripts/benchmark.py", "compile", f"--json={tmp_path}/rows.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["part"] for row in rows] == ["compile", "compile"]
    assert 0 < rows[1]["median"] < 60
    assert "gMLP-xlarge: lower and compile" in done.stdout
