"""The paper's tables as sweeps: configs/sweeps/paper.py."""

import json
import runpy
from pathlib import Path

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.errors import ConfigError
from gmlp_flax.paper import recipes
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.paper.tables import TABLES, TUNED
from gmlp_flax.sweeps import points
from gmlp_flax.training import optimizer
from tests.failures import raised

# Argument -> points. Folders of runs are named by their points, so a change here would lose what
# users have trained.
GOLDEN = json.loads((Path(__file__).parent / "sweep_points.json").read_text())
GMLP_CLS = ("gmlp_ti_cls", "gmlp_s_cls", "gmlp_b_cls")
TRAINED = [name for name, table in TABLES.items() if table.trained]


@pytest.fixture(scope="module")
def get_sweep():
    return runpy.run_path("configs/sweeps/paper.py")["get_sweep"]


@pytest.mark.parametrize("argument", GOLDEN)
def test_points_are_the_same_as_in_the_first_sweeps(get_sweep, argument):
    """So is the order of their keys, because the names depend on it."""
    expected = GOLDEN[argument]
    swept = list(get_sweep(argument))
    as_read = json.loads(json.dumps(swept))
    assert as_read == expected
    for point, expected_point in zip(swept, expected, strict=True):
        assert list(point) == list(expected_point)
    names = {points.name(point) for point in expected}
    assert len(names) == len(expected)


def test_every_trained_table_has_a_sweep(get_sweep):
    names = {"figure5"}
    for argument in GOLDEN:
        name, _, _ = argument.partition(",")
        names.add(name)
    assert names == set(TRAINED)
    assert get_sweep("table3") == get_sweep("table3,scale=cpu")
    assert get_sweep("figure5,scale=paper") == get_sweep("table4,scale=paper")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("table1", "'table1'; did you mean"),
        ("", "table3, table4"),
        ("table3,scale=tpu", r"cpu\|gpu\|paper"),
    ],
)
def test_unknown_sweeps_are_refused(get_sweep, argument, message):
    with pytest.raises(ConfigError, match=message):
        get_sweep(argument)


def identity(config):
    """The model and the steps: rows of a table differ in one of them."""
    return json.dumps(config.model.to_dict(), default=str), config.steps


def test_tables_finetune_on_known_tasks():
    for name in TRAINED:
        assert set(TABLES[name].tasks) <= set(TUNED)


@pytest.mark.parametrize("name", TRAINED)
def test_sweeps_train_the_rows_of_the_reports(name):
    table = TABLES[name]
    for scale in recipes.SCALES:
        configs = table.configs(scale)
        assert list(configs) == list(table.rows)
        for config in configs.values():
            config_lib.validate(config)
        identities = {identity(config) for config in configs.values()}
        assert len(identities) == len(configs), "two rows are one model, trained alike"
        for point in table.points(scale):
            keys = dict(point)
            config = config_lib.open_config(keys.pop("config"))
            config.update_from_flattened_dict(keys)
            assert identity(config) in identities, point


WITH_SETTINGS = [name for name in TRAINED if TABLES[name].settings]


@pytest.mark.parametrize("name", WITH_SETTINGS)
@pytest.mark.parametrize("scale", recipes.SCALES)
def test_settings_of_a_table_make_optimizers(name, scale):
    """Learning rate multipliers name existing parameters."""
    for config in TABLES[name].configs(scale).values():
        task = tasks.find(config.task)(config)
        optimizer.make(config, task.shapes(), task.param_metadata())


def test_rows_are_published_models():
    for table in TABLES.values():
        for row in table.rows:
            name, _, _ = row.partition(",")
            assert name in PUBLISHED
        for groups in (table.series, table.longer, table.trained):
            for rows in groups.values():
                assert set(rows) <= set(table.rows)


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("table1", set()),
        ("table4", set()),
        ("table5", set()),
        ("table2", set(GMLP_CLS)),
        ("table3", {"amlp_36"}),
    ],
)
def test_a_table_has_the_rows_that_the_paper_lists(name, others):
    rows = TABLES[name].rows
    assert set(rows) == listed_in(f"Table {name[-1]}") | others
    assert len(set(rows)) == len(rows)


def listed_in(source: str) -> set[str]:
    """The models of a table of the paper."""
    return {name for name, model in PUBLISHED.items() if model.source == source}


def test_table_6_has_the_rows_of_table_5_and_relative_positions():
    """By default, no sweep trains those with relative positions."""
    listed = listed_in("Table 5")
    table = TABLES["table6"]
    assert set(table.rows) == listed | {"bert_base_rel", "bert_large_rel"}
    for rows in table.trained.values():
        assert set(rows) == listed


def test_rows_without_a_scale_are_refused():
    message = raised(ConfigError, TABLES["table4"].config, "amlp_36_128", "cpu")
    assert "amlp_36_128 has no scale=small" in message
