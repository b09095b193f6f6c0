"""Figures as files, and figures that cannot be drawn."""

import pytest

from gmlp_flax.analysis import drawing, figure_files
from gmlp_flax.errors import RunError


def save(folder):
    """Saves a figure, and returns the contents of its files by name."""
    figure, (axis,) = drawing.subplots(1, 1, 3.25, 1)
    axis.plot([1, 2])
    paths = figure_files.save({"x": figure}, str(folder))
    assert paths == [f"{folder}/figures/x.png"]
    contents = {}
    for path in (folder / "figures").iterdir():
        contents[path.name] = path.read_bytes()
    return contents


def test_a_figure_is_saved_in_three_formats_with_reproducible_bytes(tmp_path):
    files = save(tmp_path / "a")
    assert save(tmp_path / "b") == files
    assert set(files) == {"x.png", "x.svg", "x.pdf"}
    assert files["x.pdf"].startswith(b"%PDF")
    assert b"<svg" in files["x.svg"]
    width = int.from_bytes(files["x.png"][16:20], "big")
    assert width == 650  # 3.25 inches at 200 dots per inch


def test_an_undrawable_figure_is_one_line(tmp_path, monkeypatch):
    figure, _ = drawing.subplots(1, 1, 3.25, 1)

    def fail(renderer):
        raise ValueError("no font\nof two lines")

    monkeypatch.setattr(figure, "draw", fail)
    with pytest.raises(RunError) as caught:
        figure_files.save({"broken": figure}, str(tmp_path))
    message = str(caught.value)
    assert "broken was not drawn (no font)" in message
    assert "\n" not in message
    assert not (tmp_path / "figures").exists()
