"""The inputs and the rows of the part `export`, which measures bundled models."""

import numpy as np
import pytest

import gmlp_flax
from gmlp_flax.benchmarks import exports
from gmlp_flax.data.embedded import embedded_text

# jax2onnx imports plugins that warn, and drops those whose import raises
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
def test_language_models_predict_the_masked_tokens_of_all_held_out_text():
    """Most inputs at the places of the answers are [MASK]."""
    model = gmlp_flax.load("books_gmlp")
    tokenizer = model.task.tokenizer
    questions = exports.ask(model)
    tokens = questions.inputs["tokens"]
    assert tokens.shape == (121, 128)
    one_hot = np.eye(model.config.model.vocab_size, dtype=np.float32)
    inputs = questions.choose(one_hot[tokens]).argmax(-1)
    assert inputs.shape == questions.answers.shape
    masked_share = np.mean(inputs == tokenizer.mask_id)
    assert 0.75 < masked_share < 0.85
    heldout = " ".join(embedded_text("heldout"))
    heldout_words = set(heldout.split())
    answers = tokenizer.decode(questions.answers.tolist()).split()
    known = [word for word in answers if word in heldout_words]
    assert len(known) > 0.3 * len(answers)


@pytest.mark.slow
def test_rows_of_the_digits():
    pytest.importorskip("jax2onnx", reason="jax2onnx is not installed (extra: onnx)")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: onnx)")
    pytest.importorskip("flatbuffers", reason="flatbuffers is not installed (extra: stablehlo)")
    medians = {}
    units = {}
    for row in exports.bench_export(1, ["digits"]):
        medians[row["name"]] = row["median"]
        units[row["name"]] = row["unit"]
    whole = medians["digits: model.onnx"]
    half = medians["digits: model_fp16.onnx"]
    quantized = medians["digits: model_int8.onnx"]
    assert whole > 1.7 * half > 2.5 * quantized
    for name in ("JAX", "model.onnx", "model_int8.onnx"):
        assert medians[f"digits: {name}, accuracy"] == pytest.approx(94.8, abs=1)
    assert medians["digits: model_fp16.onnx, the answers of JAX"] > 99
    assert units["digits, batch 32: model_int8.onnx"] == "ms"
