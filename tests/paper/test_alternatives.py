"""What is compared, column by column: rows, configs, seeds, scales."""

from __future__ import annotations

import re

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.errors import ConfigError
from gmlp_flax.paper import alternatives, recipes
from gmlp_flax.paper.alternatives import COLUMNS, FINETUNED, MEASURED, ROWS, TRAINED
from gmlp_flax.paper.published import PUBLISHED, SIBLING


def test_rows_are_every_mixer():
    siblings = {name for name, model in PUBLISHED.items() if model.source == SIBLING}
    assert siblings < set(ROWS) and set(ROWS) - siblings == {
        "bert",
        "bert_rel",
        "bert_rel_only",
        "mixer",
        "sgu",
        "amlp_36",
    }
    assert {type(PUBLISHED[row].spec).__name__ for row in ROWS} == {
        "TransformerSpec",
        "MixerSpec",
        "GMLPSpec",
        "FNetSpec",
        "FNetHybridSpec",
        "SynthesizerSpec",
        "ExternalAttentionSpec",
        "ConvolutionSpec",
        "ResMLPSpec",
        "FeedForwardSpec",
    }
    assert set(alternatives.IMAGES.values()) == set(recipes.SMALL_IMAGE_MODELS)


def test_the_table_fits_into_six_hours():
    assert sum(column.minutes for column in COLUMNS.values()) <= 6 * 60


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_rows_of_a_column_train_alike(scale):
    """But for the model, and the rates of each row."""
    for name, column in COLUMNS.items():
        if column.kind != TRAINED:
            continue
        configs = column.configs(scale)
        first = next(iter(configs.values()))
        assert len(configs) == {"mlm": 21, "cifar10": 18}.get(name, 11)
        for config in configs.values():
            config_lib.validate(config)
            assert config.steps == column.settings(scale).get("steps", config.steps)
            changed = {key for key in config_lib.differences(first, config) if not key.startswith("model.")}
            assert changed <= {"optimizer.learning_rate", "optimizer.lr_multipliers"}
        assert len(column.points(scale)) == len(configs) * (3 if scale == "cpu" and name in ("mlm", "listops") else 1)


def test_what_is_shortened_is_set_by_the_column():
    [config] = COLUMNS["cifar10"].configs("cpu", ("sgu",)).values()
    assert (config.steps, config.optimizer.warmup, config.augment.auto, config.augment.mixup) == (300, 30, "none", 0)
    [config] = COLUMNS["cifar10"].configs("gpu", ("sgu",)).values()
    assert (config.steps, config.augment.auto, config.model.dtype) == (3500, "autoaugment", "bfloat16")


def test_finetuned_columns_read_as_many_tokens_as_were_pretrained():
    """Some mixers have one length."""
    for name, column in COLUMNS.items():
        if column.kind == FINETUNED:
            for scale in ("cpu", "gpu"):
                config = config_lib.open_config(column.of("sgu", scale))
                config.update_from_flattened_dict(column.settings(scale))
                assert config.model.length == 128 and config.task == "text_classification", name


def test_kinds_and_data():
    assert {name for name, column in COLUMNS.items() if column.kind == MEASURED} == {"costs", "tpu", "lengths"}
    assert [name for name, column in COLUMNS.items() if column.kind == TRAINED] == [
        "mlm",
        "cifar10",
        "listops",
        "bytes",
        "pixels",
    ]
    assert [COLUMNS[name].config for name in ("listops", "bytes", "pixels")] == ["lra_listops", "lra_text", "lra_image"]


def test_a_row_that_a_column_does_not_have_is_left_out():
    column = COLUMNS["pixels"]
    assert list(column.configs("cpu", ("random", "sgu"))) == ["sgu"]
    assert {point["config"] for point in column.points("cpu", ("sgu", "dense"))} == {"lra_image:gmlp,scale=small"}
    with pytest.raises(ConfigError, match="none of the rows random"):
        column.configs("cpu", ("random",))
    with pytest.raises(ConfigError, match="no scale paper: expected cpu or gpu"):
        column.configs("paper")


def test_changes_are_made_where_a_config_has_the_key():
    changes = {"steps": "7", "masking.rate": "0.3"}
    assert COLUMNS["mlm"].configs("cpu", ("sgu",), changes)["sgu"].masking.rate == 0.3
    assert COLUMNS["cifar10"].configs("cpu", ("sgu",), changes)["sgu"].steps == 7


def test_names_are_checked():
    assert alternatives.checked(["sgu", "bert"], ROWS, "--rows") == ("bert", "sgu")
    for names, message in {("sgv",): "did you mean 'sgu'?", (): "there is no ''; expected one of bert, "}.items():
        with pytest.raises(ConfigError, match=re.escape(message)):
            alternatives.checked(names, ROWS, "--rows")
