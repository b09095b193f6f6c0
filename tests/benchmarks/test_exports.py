"""What the part `export` asks the models that ship, and its rows."""

import numpy as np
import pytest

import gmlp_flax
from gmlp_flax.benchmarks import exports
from gmlp_flax.data.embedded import embedded_text

# jax2onnx loads parts of itself that warn, and drops them if that raises
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_language_model_is_asked_for_the_tokens_that_were_masked():
    model = gmlp_flax.load("books_gmlp")
    questions = exports.ask(model)
    tokens = questions.inputs["tokens"]
    assert tokens.shape == (121, 128)  # all that are held out
    # Answers are tokens of the text that stand where the inputs, for the most part, have [MASK].
    one_hot = np.eye(model.config.model.vocab_size, dtype=np.float32)
    shown = questions.choose(one_hot[tokens]).argmax(-1)
    assert shown.shape == questions.answers.shape
    assert 0.75 < np.mean(shown == model.task.tokenizer.mask_id) < 0.85
    text = model.task.tokenizer.decode(questions.answers.tolist())
    words = set(" ".join(embedded_text("heldout")).split())
    got = np.mean([word in words for word in text.split()])
    assert got > 0.3


@pytest.mark.slow
def test_rows_of_the_digits():
    pytest.importorskip("jax2onnx", reason="jax2onnx is not installed (extra: onnx)")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: onnx)")
    pytest.importorskip("flatbuffers", reason="flatbuffers is not installed (extra: stablehlo)")
    rows = {row["name"]: row for row in exports.bench_export(1, ["digits"])}
    sizes = [
        rows[f"digits: {name}.onnx"]["median"] for name in ("model", "model_fp16", "model_int8")
    ]
    assert sizes[0] > 1.7 * sizes[1] > 2.5 * sizes[2]
    for name in ("JAX", "model.onnx", "model_int8.onnx"):
        assert rows[f"digits: {name}, accuracy"]["median"] == pytest.approx(94.8, abs=1)
    assert rows["digits: model_fp16.onnx, the answers of JAX"]["median"] > 99
    assert rows["digits, batch 32: model_int8.onnx"]["unit"] == "ms"
