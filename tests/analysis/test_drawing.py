"""The style of figures: plain numbers, and no settings of the user's matplotlib."""

import os
import subprocess
import sys

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.analysis import drawing


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (40, 600, ["50", "100", "200", "500"]),
        (55.5, 62.5, ["56", "58", "60", "62"]),
        (0.5, 0.95, ["0.5", "0.6", "0.7", "0.8", "0.9"]),
        (1, 2e6, ["1", "10", "100", "1000", "10 k", "100 k", "1 M"]),
    ],
)
def test_ticks_of_logarithmic_axes(low, high, labels):
    assert tick_labels(low, high) == labels


def tick_labels(low: float, high: float) -> list[str]:
    """The labels of a logarithmic axis."""
    _, (axis,) = drawing.subplots(1, 1, 3.25, 2.4)
    axis.set(yscale="log", ylim=(low, high))
    drawing.plain_axis(axis.yaxis, log=True)
    labels = []
    for tick in axis.get_yticks():
        if low <= tick <= high:
            labels.append(drawing.plain(tick))
    return labels


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (50, "50"),
        (2000, "2000"),
        (0.002, "0.002"),
        (-0.25, "-0.25"),
        (500_000, "500 k"),
        (1_843_200, "1.84 M"),
        (2.5e9, "2.5 B"),
    ],
)
def test_numbers_are_printed_plainly(value, text):
    assert drawing.plain(value) == text


@given(st.floats(1e-3, 1e6), st.floats(1.01, 1e6))
def test_every_logarithmic_axis_has_two_to_eight_ticks(low, factor):
    assert 2 <= len(tick_labels(low, low * factor)) <= 8


def test_the_style_overrides_the_users_settings():
    with matplotlib.rc_context({"font.size": 40, "text.usetex": True, "axes.facecolor": "red"}):
        with drawing.style():
            figure, [axis] = drawing.subplots(1, 1, 3.25, 1)
            text = axis.text(0, 0, "a_b")
        assert matplotlib.rcParams["font.size"] == 40
    assert text.get_fontsize() == 7
    assert text.get_usetex() is False
    assert axis.get_facecolor() == (1, 1, 1, 1)
    assert figure.dpi == 200


@pytest.mark.parametrize("backend", ["nonsense", "TkAgg"])
def test_the_users_backend_and_matplotlibrc_are_ignored(tmp_path, backend):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.size: 40\nbackend: Qt5Agg\n")
    code = (
        "import os\n"
        "from gmlp_flax.analysis import figure_files\n"
        "from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series\n"
        "from gmlp_flax.analysis.looks import Look\n"
        "series = Series('a', Look('#000000'), [1, 2], [3, 4])\n"
        "chart = Chart([Panel('a', Scale('x'), Scale('y'), [series])])\n"
        f"figure_files.save({{'x': chart}}, {str(tmp_path)!r})\n"
        f"assert os.environ['MPLBACKEND'] == {backend!r}\n"
    )
    environment = {**os.environ, "MPLBACKEND": backend, "MATPLOTLIBRC": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    png = (tmp_path / "figures" / "x.png").read_bytes()
    assert int.from_bytes(png[16:20], "big") == 650
