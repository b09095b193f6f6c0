"""What is compared, column by column: rows, configs, seeds, scales."""

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.models import blocks
from gmlp_flax.paper import alternatives, recipes
from gmlp_flax.paper.alternatives import COLUMNS, ROWS
from gmlp_flax.paper.published import PUBLISHED, SIBLING


def test_rows_are_every_mixer():
    siblings = {name for name, model in PUBLISHED.items() if model.source == SIBLING}
    assert set(ROWS) == siblings | {"bert", "bert_rel", "bert_rel_only", "mixer", "sgu", "amlp_36"}
    mixers = {blocks.name_of(PUBLISHED[row].spec.block) for row in ROWS}
    assert mixers == set(blocks.BLOCKS)
    assert set(alternatives.IMAGES.values()) == set(recipes.SMALL_IMAGE_MODELS)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_rows_of_a_column_train_alike(scale):
    """But for the model, and the rates of each row."""
    for name, column in COLUMNS.items():
        if column.starts or scale not in column.scales:
            continue
        configs = column.configs(scale)
        first = next(iter(configs.values()))
        assert len(configs) == {"mlm": 27, "longer": 27, "cifar10": 23}.get(name, 16)
        for config in configs.values():
            config_lib.validate(config)
            assert config.steps == column.settings(scale).get("steps", config.steps)
            changed = {
                key for key in config_lib.differences(first, config) if not key.startswith("model.")
            }
            assert changed <= {"optimizer.learning_rate", "optimizer.lr_multipliers"}
        expected = len(configs) * (
            3 if scale == "cpu" and name in ("mlm", "longer", "listops") else 1
        )
        assert len(column.points(scale)) == expected


def test_finetuned_columns_read_as_many_tokens_as_were_pretrained():
    """Some mixers have one length."""
    for name, column in COLUMNS.items():
        if column.starts:
            for scale in ("cpu", "gpu"):
                config = config_lib.open_config(column.of("sgu", scale))
                config.update_from_flattened_dict(column.settings(scale))
                assert config.model.length == 128, name
                assert config.task == "text_classification", name


def test_changes_are_made_where_a_config_has_the_key():
    changes = {"steps": "7", "masking.rate": "0.3"}
    text = COLUMNS["mlm"].configs("cpu", ("sgu",), changes)["sgu"]
    images = COLUMNS["cifar10"].configs("cpu", ("sgu",), changes)["sgu"]
    assert text.masking.rate == 0.3
    assert images.steps == 7


def test_a_search_of_rates_scores_training_data_alone():
    """Its runs are shorter, and no table has their seed."""
    longer = COLUMNS["longer"]
    points = longer.search_points("cpu", "sgu")
    assert [point["optimizer.learning_rate"] for point in points] == [
        1e-3,
        2e-3,
        4e-3,
        8e-3,
        1.6e-2,
    ]
    for point in points:
        assert point["config"] == "c4_ablation:sgu,scale=small"
        assert (point["data.search"], point["steps"], point["seed"]) == (True, 3000, 100)
    trained = longer.points("cpu", ("sgu", "fnet"), {"sgu": 8e-3, "fnet": 1e-3})
    chosen = [(point["seed"], point["optimizer.learning_rate"]) for point in trained]
    assert chosen == [(0, 8e-3), (1, 8e-3), (2, 8e-3), (0, 1e-3), (1, 1e-3), (2, 1e-3)]
    assert {point["steps"] for point in trained} == {9000}
