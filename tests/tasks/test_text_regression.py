"""Numbers of sentences and pairs: GLUE's STS-B and own columns, scores against scipy, the scale of
the labels."""

import json
import math

import jax
import numpy as np
import pytest
import scipy.stats

import gmlp_flax as gf
from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.text_regression import SCALE_FILE, TextRegression
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests import preloaded
from tests.failures import failure, raised
from tests.tasks.test_text_classification import vocabulary  # noqa: F401
from tests.training import tiny

WORDS = " ".join(tiny.WORDS)
HEADER = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"


def pair(i: int) -> tuple[str, str]:
    return WORDS[i % 40 : i % 40 + 9 + i], WORDS[(7 * i) % 90 :][:12]


def stsb(folder, *, test: bool = False):
    """Files as GLUE ships them."""
    for name, count in (("train", 12), ("dev", 7)):
        rows = (
            f"{i}\tmain\tf\t2012\t{i}\ta\tb\t{pair(i)[0]}\t{pair(i)[1]}\t{i % 11 / 2:.3f}"
            for i in range(count)
        )
        (folder / f"{name}.tsv").write_text("\n".join([HEADER, *rows]) + "\n")
    if test:
        rows = (f"{i}\tmain\tf\t2012\t{i}\ta\tb\t{pair(i)[0]}\t{pair(i)[1]}" for i in range(5))
        (folder / "test.tsv").write_text("\n".join([HEADER.removesuffix("\tscore"), *rows]) + "\n")
    return folder


def config(vocabulary, train, task="stsb", **data):  # noqa: F811
    options = gmlp_config.default(task="text_regression")
    options.glue.task, options.batch_size = task, 4
    sizes = dict(
        layers=2,
        d_model=8,
        d_ffn=16,
        length=32,
        vocab_size=320,
        spatial_init_std=0.5,
        mask_padding=True,
    )
    options.model.update(sizes)
    options.data.update(train=str(train), tokenizer=vocabulary, **data)
    return options


def score(task, params):
    return Evaluator(task, Partition.make(devices=jax.devices()[:1]))(params)


def test_glues_files_and_scores(vocabulary, tmp_path):  # noqa: F811
    """Correlations are scipy's; the loss is over the variance of the training labels, whose mean is
    the baseline."""
    task = TextRegression(config(vocabulary, stsb(tmp_path)), "")
    train, heldout = task.sentences("train").labels, task.sentences("heldout").labels
    assert train.tolist() == [i % 11 / 2 for i in range(12)] and len(heldout) == 7
    assert task.scale == pytest.approx((train.mean(), train.std()))
    params = task.init(jax.random.key(1))
    metrics, outputs = score(task, params)
    predicted = outputs["label"]
    assert metrics["spearman"] == pytest.approx(scipy.stats.spearmanr(heldout, predicted)[0])
    assert metrics["pearson"] == pytest.approx(scipy.stats.pearsonr(heldout, predicted)[0])
    assert metrics["loss"] == pytest.approx(
        np.square(heldout - predicted).mean() / train.var(), rel=1e-4
    )
    [lines] = task.prediction_files(outputs).values()
    assert lines.decode().splitlines()[:2] == ["index\tprediction", f"0\t{predicted[0]:.6g}"]
    [answer] = task.predict(params, ["\t".join(pair(0))])
    assert answer == [[("score", pytest.approx(float(predicted[0]), rel=1e-4))]]


def test_a_test_set_has_no_scores(vocabulary, tmp_path):  # noqa: F811
    options = config(vocabulary, stsb(tmp_path, test=True), heldout_split="test")
    metrics, outputs = score(task := TextRegression(options, ""), task.init(jax.random.key(0)))
    assert metrics == {"examples": 5, "unlabelled": 5} and np.isfinite(outputs["label"]).all()


@pytest.mark.parametrize(
    ("score", "allowed"), [(0, True), (5, True), (5.01, False), (-2, False), (30, False)]
)
def test_scores_of_another_range(vocabulary, tmp_path, score, allowed):  # noqa: F811
    """STS-B has 0 to 5; -1 is a row of a test set."""
    rows = "".join(f"a {i}\tb {i}\t{value}\n" for i, value in enumerate((0, 2.5, -1, score)))
    (tmp_path / "a.tsv").write_text(f"sentence1\tsentence2\tscore\n{rows}")
    task = TextRegression(
        config(vocabulary, tmp_path / "a.tsv", "stsb", heldout=str(tmp_path / "a.tsv")), ""
    )
    if allowed:
        assert task.sentences("train").labels.tolist() == [0, 2.5, score]
    else:
        assert f"the label '{score}'; expected a number from 0 to 5" in failure(
            task.sentences, "train"
        )


def test_own_numbers(vocabulary, tmp_path):  # noqa: F811
    """Large, negative, -1 among them, an empty cell; a word is a bad record, and equal labels teach
    nothing."""
    labels = [1e6, -1, 250.5, "", -3e5] * 8
    rows = [{"words": f"{pair(i)[0]} {i}", "price": label} for i, label in enumerate(labels)]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = config(vocabulary, path, "own", heldout_share=0.2)
    options.own.text, options.own.label = "words", "price"
    task = TextRegression(options, "")
    train, heldout = (task.sentences(side).labels.tolist() for side in ("train", "heldout"))
    assert sorted(train + heldout) == sorted(label for label in labels if label != "")
    assert task.notes() == [
        "read: text 'words', numbers 'price' from -3e+05 to 1e+06, held out -3e+05 to 1e+06"
    ]
    wrongs = ("dear", math.inf, True, 1e300, "1_000", "1.2.3", "50%")
    for wrong, message in ((wrong, f"the label {wrong!r}; expected a number") for wrong in wrongs):
        path.write_text("".join(json.dumps(row | {"price": wrong}) + "\n" for row in rows))
        assert message in raised(DataError, TextRegression(options, "").sentences, "train")
    path.write_text("".join(json.dumps(row | {"price": 3}) + "\n" for row in rows))
    with pytest.raises(DataError, match="labels are 3.0: nothing can be learned"):
        TextRegression(options, "").scale  # noqa: B018


def test_a_run_learns_keeps_its_scale_and_predicts(vocabulary, tmp_path):  # noqa: F811
    """How many words a text has; the scale is the run's own, whatever the data are then."""
    texts = [" ".join((tiny.WORDS * 2)[i % 9 : i % 9 + 2 + i % 20]) for i in range(300)]
    lines = [
        json.dumps({"text": f"{text}", "label": 1000 + 100 * len(text.split())}) for text in texts
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(dict.fromkeys(lines)) + "\n")
    options = config(vocabulary, tmp_path / "own.jsonl", "own", heldout_share=0.2)
    options.batch_size, options.steps, options.model.length = 32, 150, 64
    options.optimizer.update(learning_rate=0.01, warmup=10)
    run = tmp_path / "run"
    result = gf.train(options, str(run))
    assert result["eval"]["spearman"] > 0.8 and result["eval"]["loss"] < 0.4
    model = gf.load(run)
    assert gf.evaluate(model, str(tmp_path / "own.jsonl"))["spearman"] > 0.8
    assert json.loads((run / SCALE_FILE).read_text())["mean"] > 1000
    [answer] = model.predict(["the a of"])
    assert answer == [[("score", pytest.approx(1300, abs=500))]]
    done = preloaded.gmlp("predict", f"--workdir={run}", input=" ".join(tiny.WORDS[:16]) + "\n")
    assert done.returncode == 0 and float(done.stdout.splitlines()[1]) == pytest.approx(
        2600, abs=500
    ), done.stderr
    (run / SCALE_FILE).write_text('{"mean": "x"}')
    with pytest.raises(DataError, match=r"scale\.json is damaged"):
        tasks.create(options, str(run)).scale  # noqa: B018
