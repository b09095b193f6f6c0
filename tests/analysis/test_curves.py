"""The loss curve holds what metrics.jsonl holds."""

from __future__ import annotations

import json

from gmlp_flax.analysis import curves, drawing


def test_curve_has_training_and_heldout_points(tmp_path, monkeypatch):
    lines = [{"step": 5, "loss": 3.0}, {"step": 10, "loss": 2.0}, {"step": 10, "eval": {"loss": 2.5}}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = []
    monkeypatch.setattr(curves, "save", lambda figure, *place: drawn.append(figure) or drawing.save(figure, *place))
    path = curves.draw(str(tmp_path))
    training, heldout = drawn[0].axes[0].lines
    assert list(training.get_xdata()) == [5, 10] and list(training.get_ydata()) == [3.0, 2.0]
    assert list(heldout.get_xdata()) == [10] and list(heldout.get_ydata()) == [2.5]
    assert path == str(tmp_path / "figures" / "loss.png")


def test_subplots_come_in_row_major_order():
    _, axes = drawing.subplots(2, 3, 1.0, 1.0)
    spans = [axis.get_subplotspec() for axis in axes]
    assert [(span.rowspan.start, span.colspan.start) for span in spans] == [(r, c) for r in range(2) for c in range(3)]
