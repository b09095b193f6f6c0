"""Both sides of the comparison of Transformers read the same masked sequences and take the same steps."""

import functools
import json
import math

import numpy as np
import pytest

from gmlp_flax import tasks
from gmlp_flax.benchmarks import transformers_beside as beside
from gmlp_flax.errors import ConfigError, RunError
from tests import preloaded
from tests.training import tiny

STEPS = 6
COPIED = [name for name, candidate in beside.CANDIDATES.items() if candidate.copied]
OWN = ["hf_bert", "hf_mpnet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus")


def tiny_settings(name, folder, bias_rate=None, **optimizer):
    """A run of six steps, an evaluation after each."""
    options = beside.settings(name, STEPS, 3, 1e-2, tiny.write_corpus(folder / "corpus.jsonl"), bias_rate)
    options.data.update(cache=str(folder / "cache"), heldout_share=0.2)
    options.model.update(layers=2, length=16, d_model=16, d_ffn=32, heads=2, vocab_size=320)
    options.masking.max_predictions, options.batch_size, options.eval.batch_size = 4, 8, 4
    options.optimizer.update(optimizer)
    return options


@functools.cache
def trained(name, folder, bias_rate=None):
    return beside.trained(name, tiny_settings(name, folder, bias_rate), lambda line: None)


def test_settings_are_those_of_the_ablation():
    """2 layers, 128 wide, MLP 512, 4 heads, n = 128, no dropout; AdamW 1e-6, decay 0.01, clip 1, linear, 100 of 900."""
    for name, candidate in beside.CANDIDATES.items():
        options = beside.settings(name, 900, 7, 2e-3, "books.jsonl")
        model, adamw = options.model, options.optimizer
        sizes = (model.layers, model.d_model, model.d_ffn, model.heads, model.length, model.vocab_size, model.dropout)
        assert sizes == (2, 128, 512, 4, 128, 2000, 0)
        assert (adamw.eps, adamw.weight_decay, adamw.clip, adamw.schedule) == (1e-6, 0.01, 1.0, "linear")
        assert (adamw.learning_rate, options.steps, options.seed, options.data.train) == (2e-3, 900, 7, "books.jsonl")
        assert model.positions == {"bert": "absolute", "bert_rel": "relative"}[candidate.row]
        if candidate.bert:
            assert model.embedding_norm and model.transform
        assert (candidate.make is None) == (candidate.ours == "") == (not name.startswith("hf_"))
        if candidate.ours:
            ours = beside.CANDIDATES[candidate.ours]
            assert (ours.row, ours.bert, ours.make) == (candidate.row, True, None)
    for steps, of_length in {12: (2, 192, 1), 900: (150, 2048, 100), 9000: (1500, 2048, 100)}.items():
        options = beside.settings("hf_bert", steps, 0, 2e-3, "embedded")
        assert (options.eval.every, options.eval.examples, options.optimizer.warmup) == of_length


@pytest.mark.parametrize("name", COPIED)
def test_a_copy_of_ours_takes_our_steps(transformers, folder, name):
    """Batches, masks, losses, gradients, clipping, decay and AdamW of torch: six steps, the perplexity after each."""
    ours, theirs = (trained(each, folder) for each in (beside.CANDIDATES[name].ours, name))
    assert len(ours.losses) == STEPS and list(ours.perplexities) == list(range(1, STEPS + 1))
    np.testing.assert_allclose(theirs.losses, ours.losses, rtol=2e-5)
    np.testing.assert_allclose(list(theirs.perplexities.values()), list(ours.perplexities.values()), rtol=1e-4)
    assert theirs.losses[-1] < theirs.losses[0]


def test_a_factor_on_the_rate_of_biases_is_the_same_on_both_sides(transformers, folder):
    """Large enough to be seen in six steps, and not the run without it."""
    ours, theirs = (trained(name, folder, bias_rate=50.0) for name in ("bert_rel_full", "hf_prenorm_rel"))
    np.testing.assert_allclose(theirs.losses, ours.losses, rtol=2e-5)
    plain = trained("bert_rel_full", folder)
    assert abs(ours.losses[-1] / plain.losses[-1] - 1) > 1e-4 and ours.losses[0] == plain.losses[0]


@pytest.mark.parametrize("name", OWN)
def test_losses_of_the_others_fall(transformers, folder, name):
    """From about that of a uniform guess, as BERT's initial values are small."""
    curve = trained(name, folder)
    assert curve.losses[0] == pytest.approx(math.log(320), rel=0.03)
    assert curve.losses[-1] < 0.97 * curve.losses[0]
    assert curve.perplexities[STEPS] < 0.8 * curve.perplexities[1]


def test_other_factors_on_rates_are_refused(folder):
    options = tiny_settings("bert_rel_full", folder, lr_multipliers=("embedding=2", f"{beside.BIAS}=8"))
    with pytest.raises(RunError, match="a factor on encoder/.*/bias alone"):
        beside.bias_factor(tasks.create(options, ""))
    for given, factor in ((8.0, 8.0), (1.0, 1.0), (None, 16.0)):  # the config's own factor is 16
        assert beside.bias_factor(tasks.create(tiny_settings("bert_rel_full", folder, given), "")) == factor
    assert beside.bias_factor(tasks.create(tiny_settings("bert_full", folder, 8.0), "")) == 1


def test_rows():
    """Medians over seeds at each evaluation; ratios and differences of the pairs that were trained, seed by seed."""
    curves = {
        "bert_full": [beside.Curve([6.0, 5.0], {1: 400.0, 2: 200.0}), beside.Curve([6.2, 5.0], {1: 500.0, 2: 100.0})],
        "hf_bert": [beside.Curve([7.0, 5.0], {1: 300.0, 2: 300.0}), beside.Curve([7.0, 5.0], {1: 300.0, 2: 110.0})],
        "hf_prenorm": [beside.Curve([6.3, 5.0], {1: 4.0, 2: 200.0}), beside.Curve([6.2, 5.0], {1: 5.0, 2: 100.0})],
        "hf_mpnet": [beside.Curve([6.0, 5.0], {1: 3.0, 2: 3.0}), beside.Curve([6.0, 5.0], {1: 3.0, 2: 3.0})],
    }
    rows = {row["name"]: (row["median"], row["min"], row["max"]) for row in beside.rows_of(curves, 1e-3)}
    assert len(rows) == 4 * 2 + 2 + 1
    assert rows["bert_full, rate 0.001: perplexity after 1 steps"] == (450, 400, 500)
    assert rows["hf_bert / bert_full, rate 0.001: perplexity at the end"] == pytest.approx((1.3, 1.1, 1.5))
    apart = rows["hf_prenorm and bert_full, rate 0.001: first 10 losses, apart"]
    assert apart == pytest.approx((0.025, 0, 0.05))


def test_a_wrong_model_is_named_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="'bart': expected some of bert, bert_rel, bert_full"):
        beside.bench_transformers(1, [0], [1e-3], ["bert", "bart"], "embedded", None)


@pytest.mark.slow
def test_the_command(transformers, tmp_path):
    """On the embedded text, two steps, both sides; the log names the differences."""
    flags = ("--steps=2", "--models=bert_full,hf_prenorm", "--rate=1e-3,2e-3", f"--json={tmp_path}/rows.json")
    done = preloaded.gmlp("benchmark", "transformers", *flags, PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    assert "hf_prenorm: RobertaPreLayerNormForMaskedLM: ours in every layer" in done.stderr
    rows = {row["name"]: row["median"] for row in json.loads((tmp_path / "rows.json").read_text())}
    assert len(rows) == 2 * (2 * 2 + 2)
    for rate in ("0.001", "0.002"):
        assert rows[f"hf_prenorm / bert_full, rate {rate}: perplexity at the end"] == pytest.approx(1, abs=1e-4)
        assert rows[f"hf_prenorm and bert_full, rate {rate}: first 10 losses, apart"] < 1e-5
