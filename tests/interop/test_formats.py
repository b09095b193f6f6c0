"""The forward pass of models in other formats, read without our code: with torch, jax.export and
onnxruntime."""

import dataclasses
import importlib.util
import re
import sys

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import gmlp_flax
from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError, install
from gmlp_flax.interop import exported, formats
from tests.selection import marked_unless

IMAGES = {"image_size": (8, 12), "patch_size": (4, 4)}
TEXT = {"length": 12, "vocab_size": 40}
GREY = {"image_size": (4, 5), "patch_size": (1, 1), "stem": "table", "channels": 1}
# Every option of the reader for torch is in one of these models at least.
MODELS = {
    "gmlp": ("masked_lm", "gmlp", TEXT | {"scale_embeddings": True, "spatial": "dense"}),
    "amlp": (
        "masked_lm",
        "gmlp",
        TEXT | {"d_attn": 8, "positions": "absolute", "mask_padding": True},
    ),
    "linear": (
        "masked_lm",
        "gmlp",
        TEXT | {"gate": "linear", "embedding_norm": True, "transform": True},
    ),
    "causal": (
        "causal_lm",
        "gmlp",
        TEXT | {"d_attn": 8, "activation": "gelu_tanh", "gate_norm_eps": 1e-3},
    ),
    "causal_dense": (
        "causal_lm",
        "gmlp",
        TEXT | {"spatial": "dense", "gate": "additive", "tie_embeddings": False},
    ),
    "types": (
        "masked_lm",
        "gmlp",
        TEXT | {"token_types": 4, "embedding_projection": True, "gate": "multiplicative"},
    ),
    "images": ("image_classification", "gmlp", IMAGES | {"spatial": "dense", "pool": "mean"}),
    "cls": (
        "image_classification",
        "gmlp",
        IMAGES | {"pool": "cls", "pre_logits": True, "d_attn": 8},
    ),
    "grey": ("image_classification", "gmlp", GREY),
    "mixer": ("image_classification", "mixer", IMAGES),
    "resmlp": ("image_classification", "resmlp", IMAGES),
    "vit": (
        "image_classification",
        "transformer",
        IMAGES | {"positions": "absolute", "pool": "cls", "heads": 2},
    ),
    "depthwise": (
        "masked_lm",
        "gmlp",
        TEXT | {"spatial": "depthwise", "gate_kernel": 6, "gate": "additive", "mask_padding": True},
    ),
    "depthwise, causal": (
        "causal_lm",
        "gmlp",
        TEXT | {"spatial": "depthwise", "gate_kernel": 6, "d_attn": 4},
    ),
    "bert": (
        "masked_lm",
        "transformer",
        TEXT | {"positions": "absolute", "heads": 2, "mask_padding": True},
    ),
    "fnet": ("masked_lm", "fnet", TEXT),
    "convolution": ("masked_lm", "convolution", TEXT | {"heads": 2, "mask_padding": True}),
    "bigs": ("masked_lm", "bigs", TEXT | {"d_state": 4, "mask_padding": True}),
    "bigs_causal": ("causal_lm", "bigs", TEXT | {"d_state": 4, "state_spaces": 2}),
    "delta": ("masked_lm", "delta", TEXT | {"heads": 2, "chunk": 4, "mask_padding": True}),
    "delta_causal": ("causal_lm", "delta", TEXT | {"heads": 2}),
    "hydra": ("masked_lm", "hydra", TEXT | {"heads": 2, "mask_padding": True}),
    "long_conv": (
        "masked_lm",
        "long_conv",
        TEXT | {"filter_width": 8, "filter_frequency": 1.0, "mask_padding": True},
    ),
    "long_conv_causal": (
        "causal_lm",
        "long_conv",
        TEXT | {"filter_width": 8, "filter_frequency": 1.0},
    ),
    "hydra_fast": ("masked_lm", "hydra", TEXT | {"heads": 2, "form": "fast"}),
    "hydra_causal": ("causal_lm", "hydra", TEXT | {"heads": 2, "groups": 2}),
    "hydra_low_rank": ("masked_lm", "hydra", TEXT | {"heads": 2, "matrix": "low_rank"}),
    "hydra_attention": ("masked_lm", "hydra", TEXT | {"heads": 2, "matrix": "attention"}),
    "hydra_toeplitz": ("masked_lm", "hydra", TEXT | {"heads": 2, "matrix": "toeplitz"}),
    "hydra_dense": (
        "masked_lm",
        "hydra",
        TEXT | {"heads": 2, "matrix": "dense", "input_dependent": False},
    ),
}
TORCH = [name for name, (_, block, _) in MODELS.items() if block == "gmlp"]
IN_STABLEHLO = ("amlp", "vit", "fnet", "bigs", "delta", "hydra", "depthwise", "long_conv")


def make(name, tmp_path):
    """A model whose parameters are all random, three inputs, and their logits."""
    task, block, options = MODELS[name]
    config = config_lib.default(task=task, block=block)
    is_causal = task == "causal_lm"
    config.model.update(layers=2, d_model=16, d_ffn=24, causal=is_causal)
    config.model.update(options)
    path = tmp_path / "config.json"
    path.write_text(config_lib.to_json(config))
    rng = np.random.default_rng(0)
    if task == "image_classification":
        model = gmlp_flax.create(str(path), classes=5)
        model = with_noise(model, rng)
        shape = (3, *config.model.image_size, config.model.channels)
        pixels = rng.integers(0, 40, shape)
        inputs = pixels.astype(np.uint8)
    else:
        created = gmlp_flax.create(str(path))
        model = with_noise(created, rng)
        token_shape = (3, config.model.length)
        inputs = rng.integers(0, 40, token_shape).astype(np.int32)
    logits = np.asarray(model.logits(inputs))
    return model, inputs, logits


def with_noise(model, rng):
    """A model with changed parameters. Initial ones, with scales of 1 and biases of 0, would hide
    errors."""
    leaves, structure = jax.tree.flatten(model.params)
    changed = []
    for leaf in leaves:
        noise = 0.3 * rng.normal(size=leaf.shape)
        typed_noise = noise.astype(leaf.dtype)
        changed.append(leaf + typed_noise)
    params = jax.tree.unflatten(structure, changed)
    return dataclasses.replace(model, params=params)


@pytest.mark.parametrize("name", marked_unless(["amlp", "causal"], TORCH, pytest.mark.slow))
def test_logits_in_torch(name, tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    model, inputs, logits = make(name, tmp_path)
    out = tmp_path / "model"
    code = formats.encode(model, "torch")
    code_files = {"modeling_gmlp.py": code}
    exported.write(model.params, model.config, code_files, str(out))
    assert len(code.splitlines()) <= 260
    assert b"gmlp_flax." not in code
    module = import_file(out / "modeling_gmlp.py")
    reader = module.GMLP.from_pretrained(str(out))
    tolerance = 1e-5 * np.abs(logits).max()

    def check(inputs):
        with torch.no_grad():
            found = reader(torch.tensor(inputs)).numpy()
        assert_allclose(found, model.logits(inputs), atol=tolerance)

    check(inputs)
    if name in ("amlp", "causal"):  # these take shorter texts
        check(inputs[:, :7])
    if "vocab_size" in model.config.model:
        padded = inputs.copy()
        padded[:, 5:] = model.task.tokenizer.pad_id
        check(padded)


def import_file(path):
    """The module of a Python file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", marked_unless(["amlp", "vit"], IN_STABLEHLO, pytest.mark.slow))
def test_stablehlo(name, tmp_path):
    """Any batch, and three platforms in one file."""
    pytest.importorskip("flatbuffers", reason="flatbuffers is not installed (extra: stablehlo)")
    model, inputs, logits = make(name, tmp_path)
    content = formats.encode(model, "stablehlo")
    program = jax.export.deserialize(bytearray(content))
    assert program.platforms == ("cpu", "cuda", "tpu")
    for batch in (1, 3):
        got = program.call(inputs[:batch])
        assert_allclose(got, logits[:batch], atol=1e-5)


IN_ONNX = (
    "gmlp",
    "amlp",
    "causal",
    "causal_dense",
    "types",
    "images",
    "mixer",
    "resmlp",
    "vit",
    "bert",
    "fnet",
    "convolution",
    "depthwise",
    "depthwise, causal",
    "long_conv",
    "long_conv_causal",
    "bigs",
    "bigs_causal",
    "delta",
    "delta_causal",
    "hydra",
    "hydra_fast",
    "hydra_causal",
    "hydra_low_rank",
    "hydra_attention",
    "hydra_toeplitz",
    "hydra_dense",
)
QUICK_IN_ONNX = ("amlp", "images", "vit", "hydra_causal", "long_conv")


@pytest.mark.slow
# jax2onnx loads parts of itself that warn, and drops them if that raises
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", marked_unless(QUICK_IN_ONNX, IN_ONNX, pytest.mark.nightly))
def test_onnx(name, tmp_path):
    pytest.importorskip("jax2onnx", reason="jax2onnx is not installed (extra: onnx)")
    onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
    onnxruntime = pytest.importorskip(
        "onnxruntime", reason="onnxruntime is not installed (extra: onnx)"
    )
    model, inputs, logits = make(name, tmp_path)
    content = formats.encode(model, "onnx")
    opsets = onnx.load_from_string(content).opset_import
    [domain] = [entry for entry in opsets if not entry.domain]
    assert domain.version == 21  # that of onnxruntime 1.20
    session = onnxruntime.InferenceSession(content)
    (given,) = session.get_inputs()
    expected_name = "image" if inputs.ndim == 4 else "tokens"
    assert given.name == expected_name
    names = [output.name for output in session.get_outputs()]
    assert names == ["logits"]
    for batch in (1, 3):
        fed = {given.name: inputs[:batch]}
        (found,) = session.run(["logits"], fed)
        assert_allclose(found, logits[:batch], atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_onnx_of_a_model_with_two_inputs(tmp_path):
    """They are called by name: in another order they are the same, and so are their logits."""
    pytest.importorskip("jax2onnx", reason="jax2onnx is not installed (extra: onnx)")
    onnxruntime = pytest.importorskip(
        "onnxruntime", reason="onnxruntime is not installed (extra: onnx)"
    )
    config = config_lib.default(task="text_classification")
    config.glue.task = "rte"
    sizes = {"layers": 2, "d_model": 16, "d_ffn": 24} | TEXT
    config.model.update(sizes)
    path = tmp_path / "config.json"
    path.write_text(config_lib.to_json(config))
    model = gmlp_flax.create(str(path))
    rng = np.random.default_rng(0)

    def with_noise(leaf):
        noise = 0.3 * rng.normal(size=leaf.shape)
        return leaf + noise.astype(leaf.dtype)

    params = jax.tree.map(with_noise, model.params)
    model = dataclasses.replace(model, params=params)
    shape = (3, config.model.length)
    inputs = {
        "segments": rng.integers(0, 2, shape).astype(np.int32),
        "tokens": rng.integers(5, 40, shape).astype(np.int32),
    }
    logits = model.logits(inputs)
    session = onnxruntime.InferenceSession(formats.encode(model, "onnx"))
    names = {given.name for given in session.get_inputs()}
    assert names == {"tokens", "segments"}
    [found] = session.run(["logits"], inputs)
    assert_allclose(found, logits, atol=1e-4)
    out = str(tmp_path / "out")
    exported.export(model, out, format="onnx")
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| `tokens` | [batch, {config.model.length}] | int32 |" in card
    assert f"| `segments` | [batch, {config.model.length}] | int32 |" in card
    assert "position of their logit: 0 entailment, 1 not_entailment." in card


def test_unsupported_models_and_options_of_a_format_are_refused(tmp_path, monkeypatch):
    model, *_ = make("mixer", tmp_path)
    with pytest.raises(
        RunError, match=r"^--format=torch does not have this model, mixer in \w+ \(it has"
    ):
        formats.encode(model, "torch")
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    advice = re.escape(install("onnx"))
    with pytest.raises(RunError, match=rf"--format=onnx needs jax2onnx \(.*{advice}"):
        formats.encode(model, "onnx")


def test_tasks_without_single_inputs_are_refused(tmp_path):
    """Such as the synthetic ones. A program of the model would need its targets."""
    config = config_lib.default(task="synthetic")
    config.model.update(layers=1, d_model=8, d_ffn=16)
    path = tmp_path / "config.json"
    path.write_text(config_lib.to_json(config))
    model = gmlp_flax.create(str(path))
    with pytest.raises(ValueError, match="answers no single inputs"):
        formats.input_shapes(model.task)
