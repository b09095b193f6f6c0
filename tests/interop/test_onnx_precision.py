"""ONNX in float16 and int8 with onnxruntime: errors of logits, types of stored weights, and the accuracy
of a bundled model."""

import collections
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

# jax2onnx imports plugins that warn, and drops those whose import raises
pytestmark = pytest.mark.filterwarnings("ignore")
# The largest error, relative to the largest logit.
TOLERANCES = {"onnx-float16": 5e-3, "onnx-int8": 0.1}
# These multiply several projections, and divide the product by its norm or compute filters with
# sines. With the random weights of these tests, rounding the weights moves logits by up to 0.03
# (float16) and 0.4 (int8).
SENSITIVE = ("bigs", "delta", "hydra", "long_conv")
SENSITIVE_TOLERANCES = {"onnx-float16": 0.05, "onnx-int8": 0.5}
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
@pytest.mark.parametrize("precision", TOLERANCES)
def test_logits_of_any_batch_are_close(onnx, name, precision, tmp_path):
    model, inputs, expected = make(name, tmp_path)
    content = formats.encode(model, precision)
    proto = onnx.load_from_string(content)
    [opset] = proto.opset_import
    assert opset.domain == ""
    assert opset.version == 21
    input_name = proto.graph.input[0].name
    assert input_name == ("image" if inputs.ndim == 4 else "tokens")
    tolerances = SENSITIVE_TOLERANCES if name.startswith(SENSITIVE) else TOLERANCES
    largest = np.abs(expected).max()
    for batch in (1, 3):
        batch_inputs = inputs[:batch]
        logits = run(content, input_name, batch_inputs)
        assert logits.dtype == np.float32
        batch_expected = expected[:batch]
        errors = np.abs(logits - batch_expected)
        relative_error = errors.max() / largest
        assert relative_error < tolerances[precision]


@pytest.fixture(scope="module")
def digits():
    """A bundled model, and its held-out images and labels."""
    model = gmlp_flax.load("digits")
    kind = type(model.task)
    data = kind.Data(model.config)
    images = []
    labels = []
    examples = data.labelled("heldout")
    for index in range(len(examples)):
        example = examples[index]
        images.append(example["image"])
        labels.append(example["label"])
    return model, np.stack(images), np.array(labels)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "stored", "share"),
    [("onnx-float16", "FLOAT16", 0.55), ("onnx-int8", "INT8", 0.4)],
)
def test_a_bundled_model_becomes_small_and_keeps_its_accuracy(
    onnx, digits, precision, stored, share
):
    model, images, labels = digits
    whole = formats.encode(model, "onnx")
    content = formats.encode(model, precision)
    graph = onnx.load_from_string(content).graph
    bytes_by_type = collections.Counter()
    for tensor in graph.initializer:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        array = onnx.numpy_helper.to_array(tensor)
        bytes_by_type[kind] += array.nbytes
    [(largest, _)] = bytes_by_type.most_common(1)
    assert largest == stored
    most = share * len(whole)
    assert len(content) < most
    whole_logits = run(whole, "image", images)
    expected = whole_logits.argmax(-1)
    logits = run(content, "image", images)
    predicted = logits.argmax(-1)
    expected_accuracy = np.mean(expected == labels)
    accuracy = np.mean(predicted == labels)
    assert expected_accuracy > 0.94
    assert accuracy == pytest.approx(expected_accuracy, abs=0.01)
    assert np.mean(predicted == expected) > 0.98


@pytest.mark.slow
def test_weights_that_are_too_large_for_float16_are_refused(onnx, digits):
    model, _, _ = digits
    params = jax.tree.map(lambda leaf: leaf * 1e6, model.params)
    broken = dataclasses.replace(model, params=params)
    message = raised(RunError, formats.encode, broken, "onnx-float16")
    assert "too large for float16" in message
