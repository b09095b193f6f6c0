"""ONNX in float16 and int8, read by onnxruntime alone: how far logits are from ours, what is stored,
and the accuracy of a model that ships."""

import dataclasses

import jax
import numpy as np
import pytest

import gmlp_flax
from gmlp_flax.errors import RunError
from gmlp_flax.interop import formats
from tests.failures import raised
from tests.interop.test_formats import MODELS, make
from tests.selection import marked_unless

# jax2onnx loads parts of itself that warn, and drops them if that raises
pytestmark = pytest.mark.filterwarnings("ignore")
# Of the largest logit.
DISTANCES = {"onnx-float16": 5e-3, "onnx-int8": 0.1}
# These multiply several projections, and divide the product by its norm or compute filters with
# sines. With the random weights of
# these tests, rounding the weights alone moves logits by up to 0.03 (float16) and 0.4 (int8).
SENSITIVE = ("bigs", "delta", "hydra", "long_conv")
SENSITIVE_DISTANCES = {"onnx-float16": 0.05, "onnx-int8": 0.5}
ALL = [name for name in MODELS if name not in ("linear", "cls", "grey")]
KEPT = ("amlp", "images", "vit", "hydra", "long_conv")


@pytest.fixture(scope="module")
def onnx():
    pytest.importorskip("jax2onnx", reason="jax2onnx is not installed (extra: onnx)")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: onnx)")
    return pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")


def run(content, name, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(content)
    [logits] = session.run(["logits"], {name: inputs})
    return logits


@pytest.mark.slow
@pytest.mark.parametrize("name", marked_unless(KEPT, ALL, pytest.mark.nightly))
@pytest.mark.parametrize("precision", DISTANCES)
def test_logits(onnx, name, precision, tmp_path):
    """Of each block, for any batch; of the model whose layers are written out."""
    model, inputs, logits = make(name, tmp_path)
    content = formats.encode(model, precision)
    graph = onnx.load_from_string(content)
    got = [(entry.domain, entry.version) for entry in graph.opset_import]
    assert got == [("", 21)]
    input_name = graph.graph.input[0].name
    assert input_name == ("image" if inputs.ndim == 4 else "tokens")
    distances = SENSITIVE_DISTANCES if name.startswith(SENSITIVE) else DISTANCES
    for batch in (1, 3):
        found = run(content, input_name, inputs[:batch])
        assert found.dtype == np.float32
        distance = np.abs(found - logits[:batch]).max() / np.abs(logits).max()
        assert distance < distances[precision]


@pytest.fixture(scope="module")
def digits():
    """A model that ships, and its held-out examples."""
    model = gmlp_flax.load("digits")
    data = type(model.task).Data(model.config)
    examples = data.labelled("heldout")
    images = np.stack([examples[index]["image"] for index in range(len(examples))])
    labels = np.array([examples[index]["label"] for index in range(len(examples))])
    return model, images, labels


@pytest.mark.parametrize(
    ("precision", "stored", "share"),
    [("onnx-float16", "FLOAT16", 0.55), ("onnx-int8", "INT8", 0.4)],
)
def test_size_and_accuracy_of_a_model_that_ships(onnx, digits, precision, stored, share):
    model, images, labels = digits
    whole = formats.encode(model, "onnx")
    content = formats.encode(model, precision)
    graph = onnx.load_from_string(content).graph
    bytes_by_type = {}
    for tensor in graph.initializer:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        size = onnx.numpy_helper.to_array(tensor).nbytes
        bytes_by_type[kind] = bytes_by_type.get(kind, 0) + size
    assert max(bytes_by_type, key=bytes_by_type.get) == stored
    assert len(content) < share * len(whole)
    expected = run(whole, "image", images).argmax(-1)
    found = run(content, "image", images).argmax(-1)
    assert np.mean(expected == labels) > 0.94
    got = abs(np.mean(found == labels) - np.mean(expected == labels))
    assert got < 0.01
    assert np.mean(found == expected) > 0.98


def test_weights_that_are_too_large_for_float16_are_refused(onnx, digits):
    model, _, _ = digits
    params = jax.tree.map(lambda leaf: leaf * 1e6, model.params)
    broken = dataclasses.replace(model, params=params)
    message = raised(RunError, formats.encode, broken, "onnx-float16")
    assert "too large for float16" in message
