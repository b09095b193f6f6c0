"""The rows of the recall tasks have equal parameters, and the tasks their published sizes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gmlp_flax import config as config_lib
from gmlp_flax.paper import alternatives, matching, recall
from gmlp_flax.paper.recall import ROWS, Cell

# Rows whose attention alone is larger than a narrow Transformer.
LARGER = {("amlp_128", 32), ("amlp_128_causal", 32)}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("width", "length"), [(32, 64), (64, 128), (128, 128)])
def test_rows_have_equal_parameters(row, width, length):
    config = recall.mqar(row, length, width, "cpu")
    config_lib.validate(config)
    size = matching.encoder_size(config)
    if (row, width) in LARGER:
        assert size > 24 * width**2
        assert config.model.d_ffn == width // 2
    else:
        assert size == pytest.approx(24 * width**2, rel=0.04)


def test_rows_include_those_of_the_alternatives_and_causal_ones():
    assert set(alternatives.ROWS) < set(ROWS)
    causal = {name for name, row in ROWS.items() if row.options.get("causal")}
    assert causal == {
        "modern_causal",
        "bert_causal",
        "bert_rel_causal",
        "sgu_causal",
        "depthwise_causal",
        "long_conv_causal",
        "amlp_causal",
        "bigs_causal",
        "delta_causal",
        "hydra_causal",
        "linear_causal",
        "additive_causal",
        "multiplicative_causal",
        "sgu_dense_causal",
        "amlp_16_causal",
        "amlp_128_causal",
    }
    for name in causal:
        assert recall.mqar(name, 64, 64, "cpu").model.causal


def test_the_published_setting_of_figure_2():
    config = recall.mqar("bert_causal", 256, 512, "paper")
    assert config.model.vocab_size == 8192
    assert config.model.layers == 2
    assert config.model.heads == 8
    assert config.synthetic.pairs == 16
    assert config.synthetic.power == 0.01
    assert not config.synthetic.fill
    assert config.synthetic.examples == 100_000
    assert config.synthetic.heldout_examples == 3_000
    assert config.batch_size * config.steps == 64 * 100_000
    assert config.optimizer.weight_decay == 0.1
    expected = np.logspace(-4, -2, 4)
    assert_allclose(recall.RATES["paper"], expected, rtol=0.01)


def test_cells_have_the_published_lengths_and_widths_or_those_chosen():
    cells = recall.cells("paper", ("sgu",))
    assert {cell.width for cell in cells} == {64, 128, 256, 512}
    assert {cell.length for cell in cells} == {64, 128, 256}
    chosen = recall.cells("paper", ("sgu", "delta"), lengths=(64,), widths=(128, 512))
    assert chosen == [
        Cell("sgu", 64, 128),
        Cell("sgu", 64, 512),
        Cell("delta", 64, 128),
        Cell("delta", 64, 512),
    ]


def test_steps_of_scale_cpu():
    """aMLP needs 6,000 for MQAR. MAD's memorization has all 200 epochs of its 256 examples."""
    mqar = recall.mqar("amlp_causal", 64, 32, "cpu")
    memorization = recall.mad("sgu", "memorization", "cpu")
    assert mqar.steps == 6000
    assert mqar.batch_size == 32
    assert mqar.optimizer.warmup == 200
    assert recall.mad("sgu", "recall", "cpu").steps == 2000
    assert memorization.steps == 400
    assert memorization.batch_size * memorization.steps == 200 * 256


@pytest.mark.parametrize(
    ("task", "length", "vocabulary"),
    [
        ("recall", 128, 16),
        ("fuzzy_recall", 128, 16),
        ("noisy_recall", 128, 32),
        ("selective_copying", 256, 16),
        ("compression", 32, 16),
        ("memorization", 32, 256),
    ],
)
def test_the_published_baselines_of_mad(task, length, vocabulary):
    config = recall.mad("bert_causal", task, "paper")
    config_lib.validate(config)
    assert config.model.length == length
    assert config.model.vocab_size == vocabulary
    assert config.model.d_model == 128
    examples = 256 if task == "memorization" else 12_800
    assert config.synthetic.examples == examples
    assert config.synthetic.heldout_examples == 1_280
    assert config.batch_size == 128
    assert config.steps == 200 * examples // 128


def test_a_search_shares_no_examples_with_the_runs_of_the_report():
    cell = Cell("sgu", 64, 32)
    searched = recall.search_points(cell, "cpu")
    assert {point["seed"] for point in searched} == {100}
    assert {point["synthetic.data_seed"] for point in searched} == {100}
    assert [point["optimizer.learning_rate"] for point in searched] == [1e-3, 3e-3, 1e-2]
    trained = recall.points(cell, "cpu", 3e-3)
    assert [point["seed"] for point in trained] == [0, 1, 2]
    for point in trained:
        assert "synthetic.data_seed" not in point
    longer = cell._replace(length=128)
    assert recall.search_points(longer, "cpu") == searched
    assert recall.search_points(longer, "paper") != recall.search_points(cell, "paper")
