"""The table of speeds compared with torch."""

from docs import generate
from docs.results import peers
from gmlp_flax.benchmarks import results_file, timing
from gmlp_flax.benchmarks.machine import Machine
from gmlp_flax.benchmarks.results_file import ResultsFile


def write_measurements(path, processor, ratio):
    """Writes what a machine measured for one model."""
    opened = ResultsFile.open(str(path))
    machine = Machine(processor, 2, "AVX2", "Python 3.11.7", "2026-01-02", load=0.0)
    rows = [
        timing.row("gMLP-S, batch 8: step", [11.0, 10.0, 12.0], "examples/s"),
        timing.row("gMLP-S, batch 8: step, ours / timm", [ratio], "x", ">= 1.3"),
        timing.row("gMLP-S, batch 8: forward, ours / timm, torch.compile", [2.5], "x", ">= 1.0"),
    ]
    for row in rows:
        opened.add({"part": "peers"} | row, machine)


def test_each_machine_has_a_row(tmp_path, monkeypatch):
    write_measurements(tmp_path / "speed-peers-amd.csv", "AMD", 1.5)
    write_measurements(tmp_path / "speed-peers-intel.csv", "Intel", 0.9)
    monkeypatch.setattr(generate, "DATA", tmp_path)
    lines = peers.section().splitlines()
    assert lines[2:4] == [
        "| gMLP-S, batch 8 | AMD | 11 (10 to 12) | 1.5 |  |  |  | 2.5 |",
        "| gMLP-S, batch 8 | Intel | 11 (10 to 12) | 0.9 |  |  |  | 2.5 |",
    ]
    assert "- gMLP-S, batch 8, Intel: our step runs at 0.9 times the speed of eager" in lines


def test_every_measured_line_is_in_the_table():
    lines = 0
    for path in generate.DATA.glob("speed-peers-*.csv"):
        lines += len(results_file.read(str(path)))
    cells = 0
    for speeds in peers.speeds():
        cells += len(speeds.ours) + len(speeds.eager) + len(speeds.compiled)
    assert cells == lines >= 100
