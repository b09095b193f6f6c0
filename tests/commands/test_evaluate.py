"""Scoring a checkpoint from the command line."""

import json
import shutil

import pytest
from PIL import Image

from gmlp_flax.data.embedded import embedded_digits
from tests import preloaded


def evaluate(workdir, *flags):
    """Runs the command; returns its exit code, standard output and standard error."""
    done = preloaded.gmlp("evaluate", f"--workdir={workdir}", *flags)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.smoke
def test_latest_checkpoint_has_the_final_metrics_of_the_run(text_run):
    code, out, error = evaluate(text_run)
    assert code == 0, error
    result = json.loads((text_run / "result.json").read_text())
    found = json.loads(out)
    assert found["eval"] == result["eval"]  # every digit
    assert found["step"] == 12
    assert found["checkpoint"].endswith("checkpoints/12")


def test_ema_and_raw_weights_are_scored(image_run):
    code, out, error = evaluate(image_run)
    assert code == 0, error
    found = json.loads(out)["eval"]
    assert found == json.loads((image_run / "result.json").read_text())["eval"]
    assert found["ema_loss"] != found["loss"]
    assert found["examples"] == found["ema_examples"] == 382


def test_step_and_best_checkpoint(text_run):
    lines = [json.loads(line) for line in (text_run / "metrics.jsonl").read_text().splitlines()]
    by_step = {line["step"]: line["eval"] for line in lines if "eval" in line}
    assert json.loads(evaluate(text_run, "--checkpoint=6")[1])["eval"] == by_step[6]
    best = min(by_step, key=lambda step: by_step[step]["perplexity"])
    assert json.loads(evaluate(text_run, "--checkpoint=best")[1])["step"] == best


def test_missing_checkpoint_is_refused(text_run):
    message = preloaded.refused("evaluate", f"--workdir={text_run}", "--checkpoint=7")
    assert "has no checkpoint '7': give latest, best, or one of 6, 12" in message


def test_other_data_are_refused_unless_named(text_run, tmp_path):
    """The same key may lead to other data, here as another Python has another manual: its
    fingerprint says so."""
    run = shutil.copytree(text_run, tmp_path / "run")
    identity = json.loads((run / "run.json").read_text())
    identity["data"]["heldout"]["documents"] += 1
    (run / "run.json").write_text(json.dumps(identity))
    code, out, error = evaluate(run)
    assert code == 2
    assert not out
    assert "config.data.train=embedded, have changed since the run" in error
    assert "(5 documents, the run had 6): " in error
    code, out, error = evaluate(run, "--config.data.train=embedded")
    assert code == 0
    assert "note: the held-out data, " in error
    assert "(5 documents, the run had 6): do not compare these scores with the run's" in error
    expected = json.loads((run / "result.json").read_text())["eval"]
    assert json.loads(out)["eval"] == expected


def test_changed_image_preparation_is_reported(image_run):
    code, out, error = evaluate(image_run, "--config.data.mean=(0.1,0.1,0.1)")
    assert code == 0
    assert json.loads(out)["eval"]["examples"] == 382
    assert "was trained with another data.mean (" in error
    assert "(here (0.1, 0.1, 0.1))" in error
    assert "trained with another" not in evaluate(image_run)[2]


def test_other_data_of_the_same_classes(image_run, tmp_path):
    """Digits as files: 30 of the embedded ones, with ReaL labels."""
    digits = embedded_digits("heldout")
    for i in range(30):
        path = tmp_path / "digits" / str(digits.labels[i]) / f"ILSVRC2012_val_{i + 1:08d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = digits.examples[i]["image"]
        Image.fromarray(pixels[..., 0]).save(path)
    real = [[int(label)] for label in digits.labels[:30]]
    real[3] = []
    real[4] = list(range(10))
    (tmp_path / "real.json").write_text(json.dumps(real))
    flags = [f"--config.data.heldout={tmp_path}/digits", "--config.eval.batch_size=8"]
    code, out, error = evaluate(
        image_run, *flags, f"--config.eval.real_labels={tmp_path}/real.json"
    )
    assert code == 0, error
    found = json.loads(out)["eval"]
    assert found["examples"] == 30
    assert "unread" not in found
    # Of 29: one image without labels is left out, another is right whatever it is taken for.
    hits = round(29 * found["real"])
    assert abs(hits - round(30 * found["top1"])) <= 1
    assert found["real"] == pytest.approx(hits / 29)


def test_slices_and_share_of_the_gap(text_run):
    """The first checkpoint is behind the last one; against itself it has no gap."""
    flags = ["--slices", "--config.eval.frequent_bigrams=0", "--checkpoint=6"]
    code, out, error = evaluate(text_run, *flags, f"--reference={text_run}")
    assert code == 0, error
    found = json.loads(out)
    metrics = found["eval"]
    assert metrics["recall_predictions"] + metrics["other_predictions"] == metrics["predictions"]
    assert found["share_of_gap"] is None
    assert found["reference"]["eval"] == metrics


def test_impossible_slices_are_refused(text_run, image_run):
    message = preloaded.refused("evaluate", f"--workdir={image_run}", "--slices")
    assert "image_classification" in message
    message = preloaded.refused("evaluate", f"--workdir={text_run}", f"--reference={text_run}")
    assert "add --slices" in message
    flags = [f"--workdir={text_run}", "--slices", f"--reference={image_run}"]
    message = preloaded.refused("evaluate", *flags)  # before anything is scored
    assert f"--reference={image_run}: the task is image_classification" in message
