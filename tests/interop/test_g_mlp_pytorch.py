"""gMLP and gMLPVision of g-mlp-pytorch: names and arithmetic by hand, and the package itself if it
is installed."""

import math
import re

import numpy as np
import pytest

import gmlp_flax as gf
from gmlp_flax.errors import ConfigError, RunError
from tests.failures import raised
from tests.interop import states

D, INNER, LAYERS, PATCH, TOKENS, CLASSES = 8, 32, 2, 4, 9, 5  # images of 12 x 12
WORDS = 11


def names(attention=0, heads=1, text=False, circulant=False):
    """The names and shapes of its tensors, as its source makes them."""
    shapes = {"to_patch_embed.1.weight": (D, 3 * PATCH**2), "to_patch_embed.1.bias": (D,)}
    shapes = {"to_embed.weight": (WORDS, D)} if text else shapes
    for layer in range(LAYERS):
        block = f"layers.{layer}.fn.fn." + "fn." * text
        shapes |= {f"layers.{layer}.fn.norm.weight": (D,), f"layers.{layer}.fn.norm.bias": (D,)}
        shapes |= {f"{block}proj_in.0.weight": (INNER, D), f"{block}proj_in.0.bias": (INNER,)}
        if attention:
            shapes[f"{block}attn.to_qkv.weight"] = (3 * attention, D)
            shapes |= {
                f"{block}attn.to_out.weight": (INNER // 2, attention),
                f"{block}attn.to_out.bias": (INNER // 2,),
            }
        shapes |= {
            f"{block}sgu.weight": (heads, TOKENS, TOKENS),
            f"{block}sgu.bias": (heads, TOKENS),
        }
        if circulant:
            shapes |= {
                f"{block}sgu.{name}": (heads, TOKENS)
                for name in ("weight", "circulant_pos_x", "circulant_pos_y")
            }
        shapes |= {f"{block}sgu.norm.{part}": (INNER // 2,) for part in ("weight", "bias")}
        shapes |= {f"{block}proj_out.weight": (D, INNER // 2), f"{block}proj_out.bias": (D,)}
    shapes |= {"to_logits.0.weight": (D,), "to_logits.0.bias": (D,)}
    if text:
        return shapes | {"to_logits.1.weight": (WORDS, D), "to_logits.1.bias": (WORDS,)}
    return shapes | {"to_logits.2.weight": (CLASSES, D), "to_logits.2.bias": (CLASSES,)}


def random_state(**options):
    numbers = np.random.default_rng(0)
    return {
        name: (0.4 * numbers.normal(size=shape)).astype(np.float32)
        for name, shape in names(**options).items()
    }


def logits(w, given, causal=False):
    """Its logits for one image [12, 12, 3] in [0, 1], or for the tokens of one text."""
    text = given.ndim == 1

    def norm(name, x):
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]
            + w[f"{name}.bias"]
        )

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    if text:
        x = w["to_embed.weight"][given]
    else:
        corners = range(0, 12, PATCH)
        patches = [
            given[i : i + PATCH, j : j + PATCH].transpose(2, 0, 1).ravel()
            for i in corners
            for j in corners
        ]
        x = linear("to_patch_embed.1", np.stack(patches))
    past = np.tril(np.ones((len(x), len(x)))) if causal else np.ones((len(x), len(x)))
    for layer in range(LAYERS):
        block = f"layers.{layer}.fn.fn." + "fn." * text
        y = norm(f"layers.{layer}.fn.norm", x)
        z = linear(f"{block}proj_in.0", y)
        z = z * (1 + np.vectorize(math.erf)(z / math.sqrt(2))) / 2
        u, v = np.split(z, 2, axis=-1)
        matrix = w[f"{block}sgu.weight"][0]
        if matrix.ndim == 1:  # circulant
            pos_x, pos_y = (w[f"{block}sgu.circulant_pos_{axis}"][0] for axis in "xy")
            taps, matrix = matrix, np.zeros((TOKENS, TOKENS))
            for i in range(TOKENS):
                for j in range(i + 1):
                    matrix[i, j] = taps[TOKENS - 1 - i + j] * pos_x[i] * pos_y[j]
        matrix = past * matrix[: len(x), : len(x)]
        v = matrix @ norm(f"{block}sgu.norm", v) + w[f"{block}sgu.bias"][0][: len(x), None]
        if f"{block}attn.to_qkv.weight" in w:
            q, k, value = np.split(linear(f"{block}attn.to_qkv", y), 3, axis=-1)
            chances = past * np.exp(q @ k.T / math.sqrt(q.shape[-1]))
            v = v + linear(f"{block}attn.to_out", chances / chances.sum(-1, keepdims=True) @ value)
        x = x + linear(f"{block}proj_out", u * v)
    x = norm("to_logits.0", x)
    return linear("to_logits.1", x) if text else linear("to_logits.2", x.mean(0))


@pytest.mark.parametrize("attention", [0, 4])
def test_the_same_logits(attention, tmp_path, capsys):
    state, pixels = (
        random_state(attention=attention),
        np.random.default_rng(1).integers(0, 256, (3, 12, 12, 3)),
    )
    states.write(tmp_path / "lucid.safetensors", state)
    model = gf.load(tmp_path / "lucid.safetensors")
    assert "how pixels were scaled" in capsys.readouterr().err
    expected = np.stack([logits(state, image / 255) for image in pixels])
    np.testing.assert_allclose(model.logits(pixels), expected, atol=1e-5 * np.abs(expected).max())
    gf.export(model, str(tmp_path / "out"))
    np.testing.assert_array_equal(gf.load(tmp_path / "out").logits(pixels), model.logits(pixels))


TEXT = [{}, {"attention": 4}, {"circulant": True}, {"circulant": True, "attention": 4}]


@pytest.mark.parametrize("options", TEXT)
@pytest.mark.parametrize("causal", [False, True])
def test_the_same_logits_of_text(options, causal, tmp_path, capsys):
    state, ids = (
        random_state(text=True, **options),
        np.random.default_rng(1).integers(0, WORDS, (3, TOKENS)),
    )
    states.write(tmp_path / "lucid.safetensors", state)
    model = gf.load(tmp_path / "lucid.safetensors", causal=causal)
    assert (
        model.config.task == ("causal_lm" if causal else "masked_lm")
        and "act and shift" in capsys.readouterr().err
    )
    for tokens in (TOKENS, 5) if causal else (TOKENS,):
        expected = np.stack([logits(state, text[:tokens], causal) for text in ids])
        np.testing.assert_allclose(
            model.logits(ids[:, :tokens]), expected, atol=1e-5 * np.abs(expected).max()
        )
    gf.export(model, str(tmp_path / "out"))
    again = gf.load(tmp_path / "out")
    np.testing.assert_array_equal(again.logits(ids), model.logits(ids))
    assert "created without a tokenizer" in raised(RunError, again.predict, "some [MASK]")


def test_whether_it_is_causal_is_concluded_from_the_weights(tmp_path, capsys):
    """Training leaves the weights above a causal W's diagonal as small as they start, or
    smaller."""
    state = random_state(text=True)
    for name in [name for name in state if "sgu.weight" in name]:
        start = np.random.default_rng(2).uniform(-1e-3 / TOKENS, 1e-3 / TOKENS, (1, TOKENS, TOKENS))
        state[name] = (np.tril(state[name]) + np.triu(start, 1)).astype(np.float32)
    for file, given, causal in (
        ("alone", state, True),
        (
            "fresh",
            state | {name: 1e-4 * x for name, x in state.items() if "sgu.weight" in name},
            False,
        ),
        ("wrapped", {f"net.{name}": x for name, x in random_state(text=True).items()}, True),
        ("random", random_state(text=True), False),
    ):
        states.write(tmp_path / f"{file}.safetensors", given)
        assert gf.load(tmp_path / f"{file}.safetensors").config.model.causal == causal
        assert (
            f"if it were{'' if causal else ' not'}; give gmlp_flax.load" in capsys.readouterr().err
        )
    states.write(tmp_path / "images.safetensors", random_state())
    assert "causal is True" in raised(
        ConfigError, gf.load, tmp_path / "images.safetensors", causal=True
    )


def changed(**tensors):
    return {**random_state(), **{name.replace("__", "."): array for name, array in tensors.items()}}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (random_state(heads=2), "has 2 heads, each with a W"),
        (
            {
                "layers.0.fn.norm.weight": np.ones(D, "f4"),
                "layers.0.fn.fn.fn.sgu.bias": np.ones((1, 9), "f4"),
            },
            "no to_embed: a gMLP without num_tokens",
        ),
        (
            changed(to_patch_embed__1__weight=np.ones((D, 32), "f4")),
            "9 patches of 32 numbers are no square ones",
        ),
        (changed(layers__0__fn__fn__sgu__bias=np.ones((1, 8), "f4")), "8 patches of 48 numbers"),
        (
            changed(layers__1__fn__fn__proj_out__bias=np.ones(3, "f4")),
            r"1 of another shape .*1.mlp_channels.fc2.bias",
        ),
        (changed(layers__0__fn__fn__sgu__bias=np.ones((), "f4")), "of g-mlp-pytorch"),
        (changed(mask=np.ones(3, "f4")), r"1 unexpected \(mask\)"),
        (random_state(heads=2, text=True), "has 2 heads, each with a W"),
        (
            {**random_state(text=True), "to_logits.1.bias": np.ones(3, "f4")},
            r"output.bias \[3\], not \[11\]",
        ),
        (
            {**random_state(text=True), "layers.0.fn.fn.fn.sgu.circulant_pos_x": np.ones(9, "f4")},
            "of g-mlp-pytorch",
        ),
    ],
)
def test_what_our_blocks_have_not_is_refused_in_a_line(state, message, tmp_path):
    states.write(tmp_path / "lucid.safetensors", state)
    told = raised(RunError, gf.load, tmp_path / "lucid.safetensors")
    assert re.search(message, told) and "lucid.safetensors" in told


@pytest.mark.parametrize("attention", [None, 4])
def test_the_package_itself(attention, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: parity)")
    package = pytest.importorskip("g_mlp_pytorch", reason="g-mlp-pytorch is not installed")
    from gmlp_flax.benchmarks.parity import randomise, relative

    sizes = {
        "image_size": 12,
        "patch_size": PATCH,
        "num_classes": CLASSES,
        "dim": D,
        "depth": LAYERS,
    }
    model = package.gMLPVision(**sizes, attn_dim=attention, prob_survival=0.9).eval()
    assert {name: tuple(x.shape) for name, x in model.state_dict().items()} == names(attention or 0)
    randomise(model, 0)
    torch.save(model.state_dict(), tmp_path / "lucid.pt")
    pixels = np.random.default_rng(1).integers(0, 256, (3, 12, 12, 3))
    with torch.inference_mode():
        expected = model(
            torch.tensor(pixels / 255, dtype=torch.float32).permute(0, 3, 1, 2)
        ).numpy()
    assert relative(gf.load(tmp_path / "lucid.pt").logits(pixels), expected) < 1e-5


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"causal": True, "attn_dim": 4, "circulant_matrix": True}]
)
def test_the_package_itself_of_text(options, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: parity)")
    package = pytest.importorskip("g_mlp_pytorch", reason="g-mlp-pytorch is not installed")
    from gmlp_flax.benchmarks.parity import randomise, relative

    sizes = {"num_tokens": WORDS, "dim": D, "depth": LAYERS, "seq_len": TOKENS}
    model = package.gMLP(**sizes, **options, prob_survival=0.9).eval()
    made = {
        "attention": options.get("attn_dim", 0),
        "circulant": options.get("circulant_matrix", False),
    }
    assert {name: tuple(x.shape) for name, x in model.state_dict().items()} == names(
        text=True, **made
    )
    randomise(model, 0)
    torch.save(model.state_dict(), tmp_path / "lucid.pt")
    ids = np.random.default_rng(1).integers(0, WORDS, (3, TOKENS))
    with torch.inference_mode():
        expected = model(torch.tensor(ids)).numpy()
    found = gf.load(tmp_path / "lucid.pt", causal=options.get("causal", False)).logits(ids)
    assert relative(found, expected) < 1e-5
