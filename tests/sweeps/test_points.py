"""Products, zips and chains of config keys, against nested loops."""

import itertools
import re
import runpy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax import config
from gmlp_flax.errors import ConfigError
from gmlp_flax.paper import recipes
from gmlp_flax.paper.alternatives import COLUMNS, ROWS
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.sweeps import points as sweep
from tests.failures import raised

NAMES = list(config.keys(config.default()))
AXES = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.integers(), min_size=1, max_size=3), max_size=3
)


def test_parts_nest():
    sizes = sweep.zipped({"batch_size": [16, 32]}, {"steps": [4, 2]})
    two_seeds = sweep.product({"seed": [0, 1]}, sizes)
    third_seed = sweep.product({"seed": [7]})
    assert sweep.chained(two_seeds, third_seed) == (
        {"seed": 0, "batch_size": 16, "steps": 4},
        {"seed": 0, "batch_size": 32, "steps": 2},
        {"seed": 1, "batch_size": 16, "steps": 4},
        {"seed": 1, "batch_size": 32, "steps": 2},
        {"seed": 7},
    )


@given(AXES)
def test_product_equals_nested_loops(axes):
    expected = []
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        expected.append(point)
    assert list(sweep.product(axes)) == expected
    one_by_one = [{name: values} for name, values in axes.items()]
    assert sweep.product(*one_by_one) == sweep.product(axes)


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True), st.integers(1, 4))
def test_zipped_advances_all_keys_together(names, count):
    values = {}
    for first, name in enumerate(names):
        stop = first + count
        values[name] = range(first, stop)
    expected = []
    for number in range(count):
        point = {}
        for first, name in enumerate(names):
            point[name] = first + number
        expected.append(point)
    assert sweep.zipped(values) == tuple(expected)


@pytest.mark.parametrize("text, expected", [
    ("0.1,0.2", ["0.1", "0.2"]),
    ("('embedding','(cls|head)/'),()", ["('embedding','(cls|head)/')", "()"]),
    ("('taps[0-9]=4',),('a[(]b=2','c=3')", ["('taps[0-9]=4',)", "('a[(]b=2','c=3')"]),
    ("it's.txt,other's.txt", ["it's.txt", "other's.txt"]),
    ("a),b", ["a)", "b"]),
])  # fmt: skip
def test_commas_outside_brackets_separate_values(text, expected):
    points = sweep.parse([f"init_from={text}"])
    assert [point["init_from"] for point in points] == expected


@given(AXES)
def test_chained_changes_one_key_after_another(axes):
    expected = []
    for name, values in axes.items():
        for value in values:
            expected.append({name: value})
    assert sweep.chained(axes) == tuple(expected)


WORDS = st.from_regex(r"[\w.-]+", fullmatch=True)
WORDS_OF_KEYS = st.dictionaries(st.sampled_from(NAMES), st.lists(WORDS, min_size=1), max_size=2)


@given(WORDS_OF_KEYS)
def test_command_line_arguments(axes):
    arguments = []
    for name, values in axes.items():
        words = ",".join(values)
        arguments.append(f"{name}={words}")
    assert sweep.parse(arguments) == sweep.product(axes)


def test_arguments_for_keys_that_change_together():
    assert sweep.parse(["seed=0,1", "batch_size:steps=16:100,32:50"]) == (
        {"seed": "0", "batch_size": "16", "steps": "100"},
        {"seed": "0", "batch_size": "32", "steps": "50"},
        {"seed": "1", "batch_size": "16", "steps": "100"},
        {"seed": "1", "batch_size": "32", "steps": "50"},
    )


def test_arguments_with_tuples_and_colons():
    assert sweep.parse(["model.image_size=(32, 32),(64, 64)", "data.train=tfds:glue/rte"]) == (
        {"model.image_size": "(32, 32)", "data.train": "tfds:glue/rte"},
        {"model.image_size": "(64, 64)", "data.train": "tfds:glue/rte"},
    )
    assert sweep.parse([]) == ({},)


def test_flags_and_name_of_a_point():
    point = {
        "optimizer.learning_rate": "1e-5",
        "model.image_size": (32, 64),
        "data.train": "a/b c.tsv",
    }
    values = ["optimizer.learning_rate=1e-5", "model.image_size=(32, 64)", "data.train=a/b c.tsv"]
    assert sweep.flags(point) == [f"--config.{value}" for value in values]
    name = sweep.name(point)
    assert name == "optimizer.learning_rate=1e-5,model.image_size=_32,_64_,data.train=a_b_c.tsv"
    assert re.fullmatch(r"[\w.,=+-]+", name)
    assert sweep.name({}) == ""


def test_point_may_name_its_config():
    files = [
        "configs/c4_ablation.py:sgu,scale=small",
        "configs/c4_ablation.py:sgu",
        "configs/quickstart_text.py",
    ]
    points = sweep.product({"seed": [0]}, {"config": files})
    first, *_ = points
    assert first == {"seed": 0, "config": files[0]}
    assert sweep.flags(first) == [f"--config={files[0]}", "--config.seed=0"]
    assert [sweep.name(point) for point in points] == [
        "seed=0,c4_ablation-sgu-scale_small",
        "seed=0,c4_ablation-sgu",
        "seed=0,quickstart_text",
    ]
    assert sweep.name({"config": "tiny.py:/tmp/a b", "seed": 1}) == "tiny-_tmp_a_b,seed=1"


def test_sweeps_with_selection():
    """How each row trains is one of the points that were tried, and no round uses a seed of the
    tables."""
    file = runpy.run_path("configs/sweeps/table3_rates.py")
    make = file["get_sweep"]
    rounds = tuple(file["ROUNDS"])
    for arg in rounds:
        points = make(arg)
        names = {sweep.name(point) for point in points}
        assert len(names) == len(points)
        assert {point["seed"] for point in points} == {100}
    keys = ("config", "optimizer.learning_rate", "optimizer.lr_multipliers", "model.embedding_norm")
    tried = set()
    all_points = (*make("settings"), *make("depths"))
    for point in all_points:
        tried.add(tuple(point[key] for key in keys))
    families = {"transformer", "gmlp", "amlp", "thin"}  # of the depths that nobody searched
    known = runpy.run_path("configs/c4_ablation.py")["SMALL_SETTINGS"]
    chosen = set()
    for row, setting in known.items():
        if row not in families:
            row_config = recipes.published(row, "cpu")
            chosen.add((row_config, *setting))
    assert chosen < tried
    configs_of_settings = {point["config"] for point in make("settings")}
    chosen_configs = {config for config, *_ in chosen}
    assert configs_of_settings <= chosen_configs
    rates = {point["optimizer.learning_rate"] for point in make()}
    assert rates == {1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2}
    message = raised(ConfigError, make, "third")
    known_rounds = ", ".join(rounds)
    assert message.endswith(f"argument is 'third'; expected one of {known_rounds}")


@pytest.mark.parametrize("name", ["cifar10", "listops"])
def test_sweep_selects_the_learning_rates_of_a_column(name):
    """Five rates of every row, as long as the column is. The column's own are among them."""
    file = runpy.run_path("configs/sweeps/alternatives_rates.py")
    tried = file["get_sweep"](name)
    column = COLUMNS[name]
    for row in column.rows:
        row_points = column.points("cpu", (row,))
        chosen, *_ = row_points
        options = config.open_config(chosen["config"])
        point = {"optimizer.learning_rate": options.optimizer.learning_rate}
        point |= chosen
        point |= {"seed": 100, "data.search": True}
        assert point in tried
    expected_count = 5 * len(column.rows)
    assert len(tried) == expected_count
    for point in tried:
        assert point.items() >= column.cpu.items()


def test_runs_of_a_column():
    file = runpy.run_path("configs/sweeps/alternatives.py")
    make = file["get_sweep"]
    assert len(make()) == 3 * len(ROWS)
    assert make("mlm") == TABLES["alternatives"].points("cpu")
    chosen = make("cifar10,rows=fnet+sgu+bert_rel,scale=gpu")
    assert [point["config"] for point in chosen] == [
        "cifar10:gmlp,scale=gpu",
        "cifar10:fnet,scale=gpu",
    ]
    messages = {
        "mlm,rows=sg": "rows: there is no 'sg'; did you mean 'sgu'?",
        "costs": "argument is 'costs'; expected one of mlm",
        "cifar10,scale=paper": "CIFAR-10, top-1 (%) has no scale paper: expected cpu or gpu",
        "cifar10,rows=bert_rel": "CIFAR-10, top-1 (%) has none of the rows bert_rel",
    }
    for arg, message in messages.items():
        assert message in raised(ConfigError, make, arg)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (
            sweep.product,
            [{"model.layrs": [1]}],
            "the sweep: there is no config key 'model.layrs'; did you mean 'model",
        ),
        (
            sweep.chained,
            [[{"model": 1}]],
            "the sweep: model is a group of keys; set one of model.block, model.layers",
        ),
        (sweep.product, [{"seed": []}], "a sweep without a value: give each key at least one"),
        (
            sweep.product,
            [{"task": "masked_lm"}],
            "the sweep over task is 'masked_lm': expected a list of values",
        ),
        (
            sweep.product,
            [{"seed": [1]}, {"seed": [2]}],
            "the sweep sets seed twice: give all its values in one place",
        ),
        (
            sweep.zipped,
            [{"seed": [1, 2], "steps": [1]}],
            "zipped values differ in number (seed: 2, steps: 1): give as",
        ),
        (
            sweep.parse,
            [["batch_siz=3"]],
            "batch_siz=3: there is no config key 'batch_siz'; did you mean 'batch_size'?",
        ),
        (sweep.parse, [["seed"]], "'seed' is not part of a grid: expected seed=VALUE,..."),
        (
            sweep.parse,
            [["seed:steps=1:2,3"]],
            "'seed:steps=1:2,3' is not part of a grid: expected seed:steps=VALUE:V",
        ),
    ],
)
def test_user_errors_are_one_line(make, arguments, message):
    error_message = raised(ConfigError, make, *arguments)
    assert error_message.startswith(message)
