"""The loss curve holds what metrics.jsonl holds."""

import json

from gmlp_flax import config as config_lib
from gmlp_flax.analysis import curves, drawing


def test_curve_has_training_and_heldout_points(tmp_path):
    lines = [{"step": 5, "loss": 3.0}, {"step": 10, "loss": 2.0}, {"step": 10, "eval": {"loss": 2.5}}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    [path] = drawing.save({"loss": curves.chart(str(tmp_path))}, str(tmp_path))
    [panel] = curves.chart(str(tmp_path)).panels
    training, heldout = panel.series
    assert (training.name, list(training.x), list(training.y)) == ("training", [5, 10], [3.0, 2.0])
    assert (heldout.name, list(heldout.x), list(heldout.y)) == ("held out", [10], [2.5])
    assert panel.title == "held-out loss 2.5 after 10 steps"
    assert path == str(tmp_path / "figures" / "loss.png")
    config = config_lib.default(task="image_classification")
    config.augment.mixup = 0.8
    (tmp_path / "config.json").write_text(config_lib.to_json(config))
    assert curves.chart(str(tmp_path)).panels[0].series[0].name == "training, of softened targets"
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"loss.png", "loss.svg", "loss.pdf"}
