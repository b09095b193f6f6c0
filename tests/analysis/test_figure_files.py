"""Figures as files, and figures that cannot be drawn."""

import pytest

from gmlp_flax.analysis import drawing, figure_files
from gmlp_flax.errors import RunError


def test_a_figure_is_saved_three_times_and_the_same_each_time(tmp_path):
    for run in "ab":
        figure, (axis,) = drawing.subplots(1, 1, 3.25, 1)
        axis.plot([1, 2])
        got = figure_files.save({"x": figure}, str(tmp_path / run))
        expected = [f"{tmp_path}/{run}/figures/x.png"]
        assert got == expected
    files = {path.name: path.read_bytes() for path in (tmp_path / "a" / "figures").iterdir()}
    got = {name: (tmp_path / "b" / "figures" / name).read_bytes() for name in files}
    assert got == files
    assert set(files) == {"x.png", "x.svg", "x.pdf"}
    assert files["x.pdf"].startswith(b"%PDF")
    assert b"<svg" in files["x.svg"]
    assert files["x.png"][16:20] == (650).to_bytes(4, "big")  # 3.25 inches at 200 dots


def test_a_figure_that_cannot_be_drawn_is_one_line(tmp_path, monkeypatch):
    figure, _ = drawing.subplots(1, 1, 3.25, 1)

    def fail(renderer):
        raise ValueError("no font\nof two lines")

    monkeypatch.setattr(figure, "draw", fail)
    with pytest.raises(RunError) as caught:
        figure_files.save({"broken": figure}, str(tmp_path))
    assert "broken was not drawn (no font)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "figures").exists()
