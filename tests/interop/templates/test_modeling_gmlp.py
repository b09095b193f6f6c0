"""The reader for PyTorch against sums done by hand. `test_formats` compares it with whole models."""

import ast
import importlib.resources
import importlib.util
import textwrap

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

PATH = importlib.resources.files("gmlp_flax.interop") / "templates" / "modeling_gmlp.py"
SPATIAL = "encoder/blocks/gate/spatial/"
MODEL = {"causal": False, "norm_eps": 1e-6, "activation": "gelu", "patch_size": [2, 3]}


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location("modeling_gmlp", str(PATH))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make(module):
    def make(weights, **options):
        data = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}
        config = {"model": {**MODEL, **options}, "data": data}
        tensors = {}
        for name, values in weights.items():
            tensors[name] = torch.tensor(np.asarray(values, np.float32))
        return module.GMLP(config, tensors)

    return make


def test_example_in_the_docstring_is_python(module):
    """Users see it in the exported folder."""
    lines = []
    for line in module.__doc__.splitlines():
        if line.startswith("    "):
            lines.append(line)
    example = textwrap.dedent("\n".join(lines))
    load, make, read_text, read_images = ast.parse(example).body
    assert isinstance(load, ast.ImportFrom)
    assert ast.unparse(make).startswith("model = ")
    assert ast.unparse(read_text).startswith("logits = ")
    assert ast.unparse(read_images).startswith("logits = ")


TOKENS = 4
TAPS = np.arange(1.0, 2 * TOKENS)


def toeplitz():
    """W[i, j] = taps[n - 1 + j - i]"""
    weights = np.zeros((TOKENS, TOKENS))
    for i, j in np.ndindex(TOKENS, TOKENS):
        offset = j - i
        weights[i, j] = TAPS[TOKENS - 1 + offset]
    return weights


@pytest.mark.parametrize("length", [4, 3])
def test_toeplitz_matrices_fit_shorter_texts(make, length):
    model = make({f"{SPATIAL}taps": [TAPS]})
    matrix = model.spatial(0, length)
    expected = toeplitz()[:length, :length]
    assert_array_equal(matrix.detach(), expected)


def test_causal_toeplitz_matrices_store_no_taps_of_later_tokens(make):
    taps = TAPS[:TOKENS]
    model = make({f"{SPATIAL}taps": [taps]}, causal=True)
    matrix = model.spatial(0, TOKENS)
    expected = np.tril(toeplitz())
    assert_array_equal(matrix.detach(), expected)


def test_dense_matrices_fit_only_their_length(make):
    weight = np.arange(9.0).reshape(1, 3, 3)
    model = make({f"{SPATIAL}weight": weight})
    assert_array_equal(model.spatial(0, 3).detach(), weight[0])
    with pytest.raises(ValueError, match="made for 3 tokens and was given 2"):
        model.spatial(0, 2)


def test_causal_dense_matrices_fit_shorter_texts(make):
    weight = np.arange(9.0).reshape(1, 3, 3)
    model = make({f"{SPATIAL}weight": weight}, causal=True)
    matrix = model.spatial(0, 2)
    matrix_array = matrix.detach()
    assert_array_equal(matrix_array, [[0, 0], [3, 4]])
    with pytest.raises(ValueError, match="at most 3 tokens and was given 4"):
        model.spatial(0, 4)


def test_patches_are_read_row_by_row(make):
    """Each patch, [height, width, channels], is one vector."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 4, 6, 3))
    size = 2 * 3 * 3
    identity = np.eye(size)
    model = make({"stem/kernel": identity, "stem/bias": np.zeros(size)})
    expected = []
    for image in images:
        patches = []
        for top in (0, 2):
            for left in (0, 3):
                patch = image[top : top + 2, left : left + 3]
                levels = patch / 255
                normalised = (levels - 0.5) / 0.25
                patches.append(normalised.ravel())
        expected.append(patches)
    output = model.stem(torch.tensor(images))
    found = output.detach()
    assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_tiny_attention(make, causal):
    """softmax(q k^T / sqrt(d_attn)) v without padding and, if causal, without later tokens."""
    rng = np.random.default_rng(1)
    width = 5
    d_attn = 2
    d_out = 3
    y = rng.normal(size=(1, 4, width))
    shape = (1, width, 3 * d_attn)
    kernel = rng.normal(size=shape)
    out = rng.normal(size=(1, d_attn, d_out))
    weights = {
        "encoder/blocks/attention/qkv/kernel": kernel,
        "encoder/blocks/attention/qkv/bias": np.zeros((1, 3 * d_attn)),
        "encoder/blocks/attention/out/kernel": out,
        "encoder/blocks/attention/out/bias": np.zeros((1, d_out)),
    }
    qkv = y[0] @ kernel[0]
    q, k, v = np.split(qkv, 3, axis=-1)
    expected = []
    for i, query in enumerate(q):
        count = min(i + 1, 3) if causal else 3  # the last token is padding
        visible = k[:count]
        logits = query @ visible.T / np.sqrt(d_attn)
        weights_of_query = np.exp(logits)
        visible_sum = weights_of_query @ v[:count]
        mixed = visible_sum / weights_of_query.sum()
        expected.append(mixed @ out[0])
    mask = torch.tensor([[True, True, True, False]])
    model = make(weights, causal=causal)
    inputs = torch.tensor(y, dtype=torch.float32)
    found = model.tiny_attention(inputs, 0, mask)
    found_array = found[0].detach()
    assert_allclose(found_array, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0.0, 3.0]),
        ("additive", [2.0, 7.0]),
        ("split", [0.0, 12.0]),
    ],
)
def test_gate(make, kind, expected):
    """Two tokens have one channel, with Z1 = (2, 4). With W = 0, f(Z2) is the bias (0, 3). Only
    "split" halves the channels."""
    width = 1
    weights = {
        "encoder/blocks/gate/norm/scale": np.ones((1, width)),
        "encoder/blocks/gate/norm/bias": np.zeros((1, width)),
        f"{SPATIAL}weight": np.zeros((1, 2, 2)),
        f"{SPATIAL}bias": [[0.0, 3.0]],
    }
    numbers = [[[2.0], [4.0]]]
    z = torch.tensor(numbers)
    if kind == "split":
        passed = torch.full_like(z, 9.0)
        z = torch.cat([z, passed], dim=-1)
    model = make(weights, gate=kind, gate_norm_eps=1e-6, d_attn=0)
    found = model.gate(z, z, 0, None)
    channel = found[0, :, 0]
    assert_allclose(channel.detach(), expected)
