"""Scoring a checkpoint from the command line."""

import json
import shutil
from typing import NamedTuple

import pytest
from PIL import Image

from gmlp_flax.data.embedded import embedded_digits
from tests import preloaded


class Scored(NamedTuple):
    """The outcome of the command."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> dict:
        """What it printed, if it succeeded."""
        assert self.code == 0, self.stderr
        return json.loads(self.stdout)


def evaluate(workdir, *flags) -> Scored:
    """Runs the command."""
    done = preloaded.gmlp("evaluate", f"--workdir={workdir}", *flags)
    return Scored(done.returncode, done.stdout, done.stderr)


def final_metrics(run) -> dict:
    """The metrics in the result of a run."""
    result = json.loads((run / "result.json").read_text())
    return result["eval"]


@pytest.mark.slow
@pytest.mark.smoke
def test_latest_checkpoint_has_the_final_metrics_of_the_run(text_run):
    found = evaluate(text_run).json()
    assert found["eval"] == final_metrics(text_run)  # every digit
    assert found["step"] == 12
    assert found["checkpoint"].endswith("checkpoints/12")


@pytest.mark.slow
def test_ema_and_raw_weights_are_scored(image_run):
    metrics = evaluate(image_run).json()["eval"]
    assert metrics == final_metrics(image_run)
    assert metrics["ema_loss"] != metrics["loss"]
    assert metrics["examples"] == 382
    assert metrics["ema_examples"] == 382


@pytest.mark.slow
def test_step_and_best_checkpoint(text_run):
    by_step = {}
    perplexities = {}
    for text in (text_run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        if "eval" in line:
            by_step[line["step"]] = line["eval"]
            perplexities[line["step"]] = line["eval"]["perplexity"]
    sixth = evaluate(text_run, "--checkpoint=6").json()
    assert sixth["eval"] == by_step[6]
    best = evaluate(text_run, "--checkpoint=best").json()
    assert best["step"] == min(perplexities, key=perplexities.get)


def test_missing_checkpoint_is_refused(text_run):
    message = preloaded.refused("evaluate", f"--workdir={text_run}", "--checkpoint=7")
    assert "has no checkpoint '7': give latest, best, or one of 6, 12" in message


@pytest.mark.slow
def test_other_data_are_refused_unless_named(text_run, tmp_path):
    """The same key may name other data, as another Python has another manual: the fingerprint of the
    data detects this."""
    run = shutil.copytree(text_run, tmp_path / "run")
    identity = json.loads((run / "run.json").read_text())
    identity["data"]["heldout"]["documents"] += 1
    (run / "run.json").write_text(json.dumps(identity))
    difference = "(5 documents, the run had 6): "
    refused = evaluate(run)
    assert refused.code == 2
    assert not refused.stdout
    assert "config.data.train=embedded, have changed since the run" in refused.stderr
    assert difference in refused.stderr
    scored = evaluate(run, "--config.data.train=embedded")
    assert scored.json()["eval"] == final_metrics(run)
    assert "note: the held-out data, " in scored.stderr
    assert f"{difference}do not compare these scores with the run's" in scored.stderr


@pytest.mark.slow
def test_changed_image_preparation_is_reported(image_run):
    changed = evaluate(image_run, "--config.data.mean=(0.1,0.1,0.1)")
    assert changed.json()["eval"]["examples"] == 382
    assert "was trained with another data.mean (" in changed.stderr
    assert "(here (0.1, 0.1, 0.1))" in changed.stderr
    assert "trained with another" not in evaluate(image_run).stderr


@pytest.mark.slow
def test_other_data_of_the_same_classes(image_run, tmp_path):
    """30 of the embedded digits as files, with ReaL labels."""
    digits = embedded_digits("heldout")
    real = []
    for index in range(30):
        label = int(digits.labels[index])
        path = tmp_path / "digits" / str(label) / f"ILSVRC2012_val_{index + 1:08d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = digits.examples[index]["image"]
        Image.fromarray(pixels[..., 0]).save(path)
        real.append([label])
    real[3] = []
    real[4] = list(range(10))
    (tmp_path / "real.json").write_text(json.dumps(real))
    scored = evaluate(
        image_run,
        f"--config.data.heldout={tmp_path}/digits",
        "--config.eval.batch_size=8",
        f"--config.eval.real_labels={tmp_path}/real.json",
    )
    metrics = scored.json()["eval"]
    assert metrics["examples"] == 30
    assert "unread" not in metrics
    # Of 29 images: one without labels is left out, and any answer is right for another one.
    hits = round(29 * metrics["real"])
    label_hits = round(30 * metrics["top1"])
    assert abs(hits - label_hits) <= 1
    assert metrics["real"] == pytest.approx(hits / 29)


@pytest.mark.slow
def test_slices_and_share_of_the_gap(text_run):
    """The first checkpoint is behind the last one; compared with itself, it has no gap."""
    flags = ["--slices", "--config.eval.frequent_bigrams=0", "--checkpoint=6"]
    found = evaluate(text_run, *flags, f"--reference={text_run}").json()
    metrics = found["eval"]
    predictions = metrics["recall_predictions"] + metrics["other_predictions"]
    assert predictions == metrics["predictions"]
    assert found["share_of_gap"] is None
    assert found["reference"]["eval"] == metrics


@pytest.mark.slow
def test_impossible_slices_are_refused(text_run, image_run):
    message = preloaded.refused("evaluate", f"--workdir={image_run}", "--slices")
    assert "image_classification" in message
    message = preloaded.refused("evaluate", f"--workdir={text_run}", f"--reference={text_run}")
    assert "add --slices" in message
    flags = [f"--workdir={text_run}", "--slices", f"--reference={image_run}"]
    message = preloaded.refused("evaluate", *flags)  # before anything is evaluated
    assert f"--reference={image_run}: the task is image_classification" in message
