"""gMLPVision of g-mlp-pytorch: names and arithmetic written down by hand, and the package itself if it is installed."""

import math

import numpy as np
import pytest

import gmlp_flax as gf
from gmlp_flax.errors import RunError
from tests.interop import states

D, INNER, LAYERS, PATCH, TOKENS, CLASSES = 8, 32, 2, 4, 9, 5  # images of 12 x 12


def names(attention=0, heads=1):
    """The names and shapes of its tensors, as its source makes them."""
    shapes = {"to_patch_embed.1.weight": (D, 3 * PATCH**2), "to_patch_embed.1.bias": (D,)}
    for layer in range(LAYERS):
        block = f"layers.{layer}.fn.fn."
        shapes |= {f"layers.{layer}.fn.norm.weight": (D,), f"layers.{layer}.fn.norm.bias": (D,)}
        shapes |= {f"{block}proj_in.0.weight": (INNER, D), f"{block}proj_in.0.bias": (INNER,)}
        if attention:
            shapes[f"{block}attn.to_qkv.weight"] = (3 * attention, D)
            shapes |= {f"{block}attn.to_out.weight": (INNER // 2, attention), f"{block}attn.to_out.bias": (INNER // 2,)}
        shapes |= {f"{block}sgu.weight": (heads, TOKENS, TOKENS), f"{block}sgu.bias": (heads, TOKENS)}
        shapes |= {f"{block}sgu.norm.{part}": (INNER // 2,) for part in ("weight", "bias")}
        shapes |= {f"{block}proj_out.weight": (D, INNER // 2), f"{block}proj_out.bias": (D,)}
    shapes |= {"to_logits.0.weight": (D,), "to_logits.0.bias": (D,)}
    return shapes | {"to_logits.2.weight": (CLASSES, D), "to_logits.2.bias": (CLASSES,)}


def random_state(**options):
    numbers = np.random.default_rng(0)
    return {name: (0.4 * numbers.normal(size=shape)).astype(np.float32) for name, shape in names(**options).items()}


def logits(w, image):
    """Its logits for one image [12, 12, 3] in [0, 1], token by token."""

    def norm(name, x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    corners = range(0, 12, PATCH)
    patches = [image[i : i + PATCH, j : j + PATCH].transpose(2, 0, 1).ravel() for i in corners for j in corners]
    x = linear("to_patch_embed.1", np.stack(patches))
    for layer in range(LAYERS):
        block = f"layers.{layer}.fn.fn."
        y = norm(f"layers.{layer}.fn.norm", x)
        z = linear(f"{block}proj_in.0", y)
        z = z * (1 + np.vectorize(math.erf)(z / math.sqrt(2))) / 2
        u, v = np.split(z, 2, axis=-1)
        v = w[f"{block}sgu.weight"][0] @ norm(f"{block}sgu.norm", v) + w[f"{block}sgu.bias"][0][:, None]
        if f"{block}attn.to_qkv.weight" in w:
            q, k, value = np.split(linear(f"{block}attn.to_qkv", y), 3, axis=-1)
            chances = np.exp(q @ k.T / math.sqrt(q.shape[-1]))
            v = v + linear(f"{block}attn.to_out", chances / chances.sum(-1, keepdims=True) @ value)
        x = x + linear(f"{block}proj_out", u * v)
    return linear("to_logits.2", norm("to_logits.0", x).mean(0))


@pytest.mark.parametrize("attention", [0, 4])
def test_the_same_logits(attention, tmp_path, capsys):
    state, pixels = random_state(attention=attention), np.random.default_rng(1).integers(0, 256, (3, 12, 12, 3))
    states.write(tmp_path / "lucid.safetensors", state)
    model = gf.load(tmp_path / "lucid.safetensors")
    assert "how pixels were scaled" in capsys.readouterr().err
    expected = np.stack([logits(state, image / 255) for image in pixels])
    np.testing.assert_allclose(model.logits(pixels), expected, atol=1e-5 * np.abs(expected).max())
    gf.export(model, str(tmp_path / "out"))
    np.testing.assert_array_equal(gf.load(tmp_path / "out").logits(pixels), model.logits(pixels))


def changed(**tensors):
    return {**random_state(), **{name.replace("__", "."): array for name, array in tensors.items()}}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (random_state(heads=2), "has 2 heads, each with a W"),
        (
            {"layers.0.fn.norm.weight": np.ones(D, "f4"), "to_embed.weight": np.ones((9, D), "f4")},
            "no gMLPVision: gMLP",
        ),
        (changed(to_patch_embed__1__weight=np.ones((D, 32), "f4")), "9 patches of 32 numbers are no square ones"),
        (changed(layers__0__fn__fn__sgu__bias=np.ones((1, 8), "f4")), "8 patches of 48 numbers"),
        (changed(layers__1__fn__fn__proj_out__bias=np.ones(3, "f4")), r"1 of another shape .*1.mlp_channels.fc2.bias"),
        (changed(layers__0__fn__fn__sgu__bias=np.ones((), "f4")), "of g-mlp-pytorch"),
        (changed(mask=np.ones(3, "f4")), r"1 unexpected \(mask\)"),
    ],
)
def test_what_our_blocks_have_not_is_refused_in_a_line(state, message, tmp_path):
    states.write(tmp_path / "lucid.safetensors", state)
    with pytest.raises(RunError, match=message) as raised:
        gf.load(tmp_path / "lucid.safetensors")
    assert "\n" not in str(raised.value) and "lucid.safetensors" in str(raised.value)


@pytest.mark.parametrize("attention", [None, 4])
def test_the_package_itself(attention, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: parity)")
    package = pytest.importorskip("g_mlp_pytorch", reason="g-mlp-pytorch is not installed")
    from gmlp_flax.benchmarks.parity import randomise, relative

    sizes = {"image_size": 12, "patch_size": PATCH, "num_classes": CLASSES, "dim": D, "depth": LAYERS}
    model = package.gMLPVision(**sizes, attn_dim=attention, prob_survival=0.9).eval()
    assert {name: tuple(x.shape) for name, x in model.state_dict().items()} == names(attention or 0)
    randomise(model, 0)
    torch.save(model.state_dict(), tmp_path / "lucid.pt")
    pixels = np.random.default_rng(1).integers(0, 256, (3, 12, 12, 3))
    with torch.inference_mode():
        expected = model(torch.tensor(pixels / 255, dtype=torch.float32).permute(0, 3, 1, 2)).numpy()
    assert relative(gf.load(tmp_path / "lucid.pt").logits(pixels), expected) < 1e-5
