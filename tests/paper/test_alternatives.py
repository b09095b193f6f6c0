"""The comparison of mixers, column by column: rows, configs, seeds, scales."""

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.models import blocks
from gmlp_flax.paper import alternatives, recipes
from gmlp_flax.paper.alternatives import COLUMNS, ROWS
from gmlp_flax.paper.published import PUBLISHED, SIBLING


def test_rows_are_every_mixer():
    expected = {"bert", "bert_rel", "bert_rel_only", "mixer", "sgu", "amlp_36"}
    for name, model in PUBLISHED.items():
        if model.source == SIBLING:
            expected.add(name)
    assert set(ROWS) == expected
    mixers = set()
    for row in ROWS:
        spec = PUBLISHED[row].spec
        mixers.add(blocks.name_of(spec.block))
    assert mixers == set(blocks.BLOCKS)
    assert set(alternatives.IMAGES.values()) == set(recipes.SMALL_IMAGE_MODELS)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_rows_of_a_column_train_alike(scale):
    """Only the model and the learning rates differ."""
    for name, column in COLUMNS.items():
        if column.starts or scale not in column.scales:
            continue
        configs = column.configs(scale)
        rows = {"mlm": 27, "longer": 27, "cifar10": 23}
        assert len(configs) == rows.get(name, 16)
        first, *_ = configs.values()
        steps = column.settings(scale).get("steps", first.steps)
        for config in configs.values():
            config_lib.validate(config)
            assert config.steps == steps
            for key in config_lib.differences(first, config):
                is_rate = key in ("optimizer.learning_rate", "optimizer.lr_multipliers")
                assert is_rate or key.startswith("model."), key
        has_seeds = scale == "cpu" and name in ("mlm", "longer", "listops")
        seeds = 3 if has_seeds else 1
        assert len(column.points(scale)) == len(configs) * seeds


FINETUNED = [name for name, column in COLUMNS.items() if column.starts]


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
@pytest.mark.parametrize("name", FINETUNED)
def test_finetuned_models_keep_the_length_of_pretraining(name, scale):
    """Some mixers cannot change it."""
    column = COLUMNS[name]
    config = config_lib.open_config(column.of("sgu", scale))
    config.update_from_flattened_dict(column.settings(scale))
    assert config.model.length == 128
    assert config.task == "text_classification"


def test_changes_apply_to_configs_that_have_the_key():
    changes = {"steps": "7", "masking.rate": "0.3"}
    text = COLUMNS["mlm"].configs("cpu", ("sgu",), changes)["sgu"]
    images = COLUMNS["cifar10"].configs("cpu", ("sgu",), changes)["sgu"]
    assert text.masking.rate == 0.3
    assert images.steps == 7


def test_learning_rates_are_searched_in_short_runs_with_another_seed():
    """They are scored on training data."""
    longer = COLUMNS["longer"]
    points = longer.search_points("cpu", "sgu")
    rates = [point["optimizer.learning_rate"] for point in points]
    assert rates == [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
    for point in points:
        assert point["config"] == "c4_ablation:sgu,scale=small"
        assert point["data.search"] is True
        assert point["steps"] == 3000
        assert point["seed"] == 100
    trained = longer.points("cpu", ("sgu", "fnet"), {"sgu": 8e-3, "fnet": 1e-3})
    assert [point["seed"] for point in trained] == [0, 1, 2, 0, 1, 2]
    rates = [point["optimizer.learning_rate"] for point in trained]
    assert rates == [8e-3, 8e-3, 8e-3, 1e-3, 1e-3, 1e-3]
    assert {point["steps"] for point in trained} == {9000}
