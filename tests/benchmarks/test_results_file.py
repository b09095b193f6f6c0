"""The CSV files of measured rows."""

import pytest

from gmlp_flax.benchmarks import results_file, timing
from gmlp_flax.benchmarks.machine import Machine
from gmlp_flax.benchmarks.results_file import COLUMNS, ResultsFile
from gmlp_flax.errors import DataError
from tests import preloaded

MACHINE = Machine("A processor", 2, "AVX2", "Python 3.11.7", "2026-01-02", load=0.0)
OTHER = Machine("Another", 4, "AVX-512", "Python 3.13.1", "2026-01-03", load=3.0)


def entry(name, values):
    return {"part": "peers", **timing.row(name, values, "x", ">= 1.0")}


def test_rows_are_kept_and_replaced_by_machine(tmp_path):
    path = str(tmp_path / "rows.csv")
    opened = ResultsFile.open(path)
    opened.add(entry("step", [1.0, 1.2, 1.1]), MACHINE)
    opened.add(entry("forward", [0.8]), MACHINE)
    again = ResultsFile.open(path)
    again.add(entry("step", [2.0]), OTHER)
    again.add(entry("step", [1.3]), MACHINE)
    lines = results_file.read(path)
    assert [(line["name"], line["processor"], line["median"]) for line in lines] == [
        ("step", "A processor", "1.3"),
        ("forward", "A processor", "0.8"),
        ("step", "Another", "2"),
    ]
    assert lines[1]["verdict"] == "missed"
    assert lines[2]["idle"] == "no, load 3.0"


def test_unwritable_paths_lose_no_measurement(tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "rows.csv"
    message = preloaded.refused("benchmark", "step", f"--csv={path}")
    assert str(path) in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "is not a file of gmlp benchmark --csv: expected the columns part, name"),
        ("", "is not a file of gmlp benchmark --csv"),
        (f"{','.join(COLUMNS)}\npeers,step\n", "line 2: expected 14 cells"),
    ],
)
def test_other_files_are_refused_before_anything_is_measured(tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        ResultsFile.open(str(path))
    assert message in preloaded.refused("benchmark", "step", f"--csv={path}")
    assert path.read_text() == text
