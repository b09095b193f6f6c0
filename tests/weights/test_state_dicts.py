"""State dicts of torch become our parameters; weights that do not fit are refused."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax.errors import RunError
from gmlp_flax.weights import state_dicts
from gmlp_flax.weights.state_dicts import LINEAR, NORM, QUERIES, SINGLE, VALUES, Row
from tests.failures import raised

ROWS = [
    Row("layer.*.dense", "blocks/dense", LINEAR),
    Row("norm", "norm", NORM),
    Row("table", "table", SINGLE),
    Row("none", "none", LINEAR),  # a layer that this model does not have
]


def like():
    """Parameters of two layers, each with a kernel [3, 4], a norm and a table."""
    return {
        "blocks": {
            "dense": {
                "kernel": np.zeros((2, 3, 4), np.float32),
                "bias": np.zeros((2, 4), np.float32),
            }
        },
        "norm": {"scale": np.zeros(3, np.float32), "bias": np.zeros(3, np.float32)},
        "table": np.zeros((5, 3), np.float32),
    }


def state():
    numbers = np.random.default_rng(0)
    shapes = {
        "layer.0.dense.weight": (4, 3),
        "layer.0.dense.bias": (4,),
        "layer.1.dense.weight": (4, 3),
        "layer.1.dense.bias": (4,),
        "norm.weight": (3,),
        "norm.bias": (3,),
        "table": (5, 3),
    }
    tensors = {}
    for name, shape in shapes.items():
        tensors[name] = numbers.normal(size=shape).astype(np.float32)
    return tensors


def test_layers_are_stacked_and_kernels_transposed():
    tensors = state()
    params = state_dicts.from_torch(tensors, ROWS, like(), "FILE")
    kernel = params["blocks"]["dense"]["kernel"]
    for layer in range(2):
        weight = tensors[f"layer.{layer}.dense.weight"]
        assert_array_equal(kernel[layer], weight.T)
    scale = params["norm"]["scale"]
    assert_array_equal(scale, tensors["norm.weight"])
    assert_array_equal(params["table"], tensors["table"])
    assert params.keys() == like().keys()


def test_parameters_have_the_dtypes_of_the_model():
    halves = {}
    for name, array in state().items():
        halves[name] = array.astype(np.float16)
    params = state_dicts.from_torch(halves, ROWS, like(), "FILE")
    table = params["table"]
    assert table.dtype == np.float32
    expected = halves["table"].astype(np.float32)
    assert_array_equal(table, expected)


def test_queries_keys_and_values_are_parts_of_one_layer():
    rows = [
        Row("query", "proj_in", QUERIES),
        Row("key", "proj_in", state_dicts.KEYS),
        Row("value", "proj_in", VALUES),
    ]
    numbers = np.arange(18, dtype=np.float32)
    kernel = numbers.reshape(3, 6)
    flat = {"proj_in/kernel": kernel, "proj_in/bias": np.arange(6, dtype=np.float32)}
    views = state_dicts.torch_views(flat, rows)
    positions = ((0, "query"), (2, "key"), (4, "value"))
    for first, name in positions:
        columns = kernel[:, first : first + 2]
        weight = columns.T
        bias = [first, first + 1]
        assert_array_equal(views[f"{name}.weight"], weight)
        assert_array_equal(views[f"{name}.bias"], bias)


def test_views_share_memory_with_the_parameters():
    kernel = np.zeros((2, 3, 4))
    flat = {"blocks/dense/kernel": kernel, "table": np.zeros((5, 3))}
    views = state_dicts.torch_views(flat, ROWS)
    assert views.keys() == {"layer.0.dense.weight", "layer.1.dense.weight", "table"}
    views["layer.1.dense.weight"][3, 2] = 7
    assert flat["blocks/dense/kernel"][1, 2, 3] == 7
    assert flat["blocks/dense/kernel"].sum() == 7


def test_led_by_ones_adds_leading_axes():
    vector = np.arange(4)
    assert state_dicts.led_by_ones(vector).shape == (1, 1, 4)
    assert state_dicts.led_by_ones(vector.reshape(2, 2)).shape == (1, 2, 2)


def test_patterns_are_replaced_one_after_another():
    values = {"a.gamma": 1, "b.beta": 2}
    patterns = {r"\.gamma$": ".g", "g$": "h"}
    assert state_dicts.renamed(values, patterns) == {"a.h": 1, "b.beta": 2}


def pop(*names):
    def change(tensors):
        for name in names:
            del tensors[name]

    return change


def add(**arrays):
    def change(tensors):
        for name, array in arrays.items():
            tensors[name.replace("__", ".")] = array

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (pop("norm.bias"), "1 missing (norm.bias)"),
        (add(extra=np.zeros(1)), "1 unexpected (extra)"),
        (add(norm__bias=np.zeros(3, int)), "(norm.bias int64)"),
        (add(norm__bias=np.zeros(4)), "1 of another shape (norm.bias [4], not [3])"),
        (pop("layer.0.dense.bias", "layer.1.dense.bias"), "2 missing (layer.0.dense.bias, "),
        (add(norm__bias=np.float32([0, np.nan, np.inf])), "norm.bias has numbers"),
    ],
)
def test_weights_that_do_not_fit_are_named_and_counted(change, words):
    tensors = state()
    change(tensors)
    message = raised(RunError, state_dicts.from_torch, tensors, ROWS, like(), "FILE")
    assert message.startswith("FILE")
    assert words in message


def test_many_weights_that_do_not_fit_are_counted():
    """At most eight are named."""
    tensors = state()
    for number in range(10):
        tensors[f"extra{number}"] = np.zeros(1, np.float32)
    message = raised(RunError, state_dicts.from_torch, tensors, ROWS, like(), "FILE")
    assert "10 unexpected (extra0, " in message
    assert message.count("extra") == 8
    assert message.endswith(", and 2 more)")
