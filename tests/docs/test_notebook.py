"""The notebook runs, and its outputs in the repository are a reader's, not one machine's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

PATH = Path("docs/first-run.ipynb")


def outputs(notebook: dict, kind: str) -> list[str]:
    """Everything that a notebook prints ("text"), or its figures ("image/png")."""
    found = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return ["".join(output["text"]) for output in found if "text" in output] if kind == "text" else [
        output["data"][kind] for output in found if kind in output.get("data", {})
    ]


def check(notebook: dict) -> None:
    """Fails unless the model learned and both figures are there."""
    text = "".join(outputs(notebook, "text"))
    baseline, trained = map(float, re.findall(r"perplexity ([\d.]+)", text))
    assert trained < baseline / 2
    assert re.search(r"\[MASK\] statement.*\n +\S.* \d+%,", text)
    assert "(2, 50, 128)" in text
    assert len(outputs(notebook, "image/png")) == 2


def test_committed_outputs():
    notebook = json.loads(PATH.read_text())
    check(notebook)
    assert PATH.stat().st_size < 500_000
    found = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert not [output for output in found if output.get("name") == "stderr" or output["output_type"] == "error"]
    printed = json.dumps([output for output in found if "text" in output])
    assert not re.search(r"/(tmp|home|root|Users)/", printed)


@pytest.mark.slow
def test_it_runs(monkeypatch, tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for name in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS"):  # conftest's: this trains for a minute
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(PATH, as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None) and cell.update(outputs=[])
    nbclient.NotebookClient(notebook, timeout=600).execute()  # a cell that fails raises
    check(notebook)
