"""Both models of the comparison with transformers read the same masked sequences and take the same
steps."""

import functools
import json
import math

import pytest
from numpy.testing import assert_allclose

from gmlp_flax.benchmarks import beside_transformers as beside
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from tests import preloaded
from tests.failures import raised
from tests.training import tiny

STEPS = 6
COPIES = [name for name, candidate in beside.CANDIDATES.items() if candidate.is_copy]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus")


def tiny_settings(name, folder):
    """A run of six steps, each followed by an evaluation."""
    corpus = tiny.write_corpus(folder / "corpus.jsonl")
    config = beside.settings(name, STEPS, 1e-2, corpus)
    config.data.update(cache=str(folder / "cache"), heldout_share=0.2)
    config.model.update(layers=2, length=16, d_model=16, d_ffn=32, heads=2, vocab_size=320)
    config.masking.max_predictions = 4
    config.batch_size = 8
    config.eval.batch_size = 4
    return config


@functools.cache
def trained(name, folder):
    return beside.train(name, tiny_settings(name, folder))


@pytest.mark.parametrize("name", beside.CANDIDATES)
def test_settings_are_those_of_the_ablation(name):
    config = beside.settings(name, 900, 2e-3, "books.jsonl")
    model = config.model
    assert model.layers == 2
    assert model.d_model == 128
    assert model.d_ffn == 512
    assert model.heads == 4
    assert model.length == 128
    assert model.vocab_size == 2000
    assert model.dropout == 0
    assert model.embedding_norm
    assert model.transform
    row = beside.CANDIDATES[name].row
    positions = {"bert": "absolute", "bert_rel": "relative"}
    assert model.positions == positions[row]
    adamw = config.optimizer
    assert adamw.eps == 1e-6
    assert adamw.weight_decay == 0.01
    assert adamw.clip == 1.0
    assert adamw.schedule == "linear"
    assert adamw.learning_rate == 2e-3
    assert adamw.warmup == 100
    assert config.steps == 900
    assert config.eval.every == 150
    assert config.eval.examples == 2048


@pytest.mark.parametrize("name", beside.CANDIDATES)
def test_models_of_transformers_are_made_and_compared_with_one_of_ours(name):
    candidate = beside.CANDIDATES[name]
    if name.startswith("hf_"):
        assert candidate.make
        assert candidate.ours in beside.CANDIDATES
    else:
        assert candidate.make is None
        assert candidate.ours == ""


def test_short_runs_have_frequent_evaluations_and_a_short_warmup():
    config = beside.settings("hf_bert", 12, 2e-3, "embedded")
    assert config.eval.every == 2
    assert config.eval.examples == 192
    assert config.optimizer.warmup == 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", COPIES)
def test_copies_of_our_models_take_the_same_steps(transformers, folder, name):
    """They have the same batches, masks, losses, gradients, clipping, decay, AdamW, and multiplier
    16 of the biases' learning rate."""
    ours = trained(beside.CANDIDATES[name].ours, folder)
    theirs = trained(name, folder)
    assert len(ours.losses) == STEPS
    assert list(ours.perplexities) == list(range(1, STEPS + 1))
    assert_allclose(theirs.losses, ours.losses, rtol=2e-5)
    found = list(theirs.perplexities.values())
    expected = list(ours.perplexities.values())
    assert_allclose(found, expected, rtol=1e-4)
    assert theirs.losses[-1] < theirs.losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_bert", pytest.param("hf_mpnet", marks=pytest.mark.nightly)])
def test_losses_of_bert_and_mpnet_fall(transformers, folder, name):
    """BERT's initial values are small, so that the first loss is nearly that of a uniform guess."""
    curve = trained(name, folder)
    first, *_, last = curve.losses
    assert first == pytest.approx(math.log(320), rel=0.03)
    assert last < 0.985 * first
    perplexities = curve.perplexities
    assert perplexities[STEPS] < 0.85 * perplexities[1]


def test_only_the_multiplier_of_relative_biases_is_supported(folder):
    def factor(name, lr_multipliers=None):
        config = tiny_settings(name, folder)
        if lr_multipliers is not None:
            config.optimizer.lr_multipliers = lr_multipliers
        return beside.bias_factor(MaskedLanguageModeling(config))

    assert factor("bert_rel_full") == 16
    assert factor("bert_full") == 1
    assert factor("bert_rel_full", ()) == 1
    unsupported = ("embedding=2", f"{beside.BIAS}=8")
    message = raised(RunError, factor, "bert_rel_full", unsupported)
    assert beside.BIAS in message


def test_rows_have_perplexities_and_differences():
    curves = {
        "bert_full": beside.Curve([6.0, 5.0], {1: 400.0, 2: 200.0}),
        "hf_bert": beside.Curve([7.0, 5.0], {1: 300.0, 2: 300.0}),
        "hf_prenorm": beside.Curve([6.3, 5.0], {1: 4.0, 2: 200.0}),
        "hf_mpnet": beside.Curve([6.0, 5.0], {1: 3.0, 2: 3.0}),
    }
    rows = {row["name"]: row["median"] for row in beside.rows_of(curves)}
    assert len(rows) == 4 * 2 + 2 + 1
    assert rows["bert_full: perplexity after 1 steps"] == 400
    assert rows["hf_bert / bert_full: perplexity at the end"] == 1.5
    title = "hf_prenorm and bert_full: first 10 losses, largest difference"
    assert rows[title] == pytest.approx(0.05)


def test_unknown_models_are_refused_before_anything_is_loaded():
    message = raised(ConfigError, beside.bench_training, 1, 1e-3, ["bert_full", "hf_bart"], "")
    assert "'hf_bart'" in message
    assert "'hf_bert'" in message


@pytest.mark.nightly
def test_the_command_trains_both_models_and_logs_their_differences(transformers, tmp_path):
    flags = ("--steps=2", "--models=bert_full,hf_prenorm", f"--json={tmp_path}/rows.json")
    done = preloaded.gmlp("benchmark", "training", *flags, PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    assert "hf_prenorm: RobertaPreLayerNormForMaskedLM: ours in every layer" in done.stderr
    content = json.loads((tmp_path / "rows.json").read_text())
    rows = {row["name"]: row["median"] for row in content}
    assert rows["hf_prenorm / bert_full: perplexity at the end"] == pytest.approx(1, abs=1e-4)
    assert rows["hf_prenorm and bert_full: first 10 losses, largest difference"] < 1e-5
