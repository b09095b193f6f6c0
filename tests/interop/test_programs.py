"""The program on the card of an exported model, run as it stands: onnxruntime and Pillow or
SentencePiece answer as gmlp_flax does."""

import ast
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import gmlp_flax
from gmlp_flax import config as config_lib
from gmlp_flax.interop import exported, programs

pytestmark = pytest.mark.filterwarnings("ignore")
LINES = ("She opened the [MASK] and went in.", "[MASK] sea, the [MASK]-coloured hills  of night")


@pytest.fixture(scope="module", autouse=True)
def onnx():
    pytest.importorskip("jax2onnx", reason="jax2onnx is not installed (extra: onnx)")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: onnx)")


def run_program(model, folder, *arguments, text=""):
    """What the program of an exported model prints. It must not import gmlp_flax or JAX."""
    path = export_program(model, folder)
    done = run_path(path, *arguments, text=text.encode())
    assert done.returncode == 0, done.stderr
    return done.stdout


def export_program(model, folder):
    """The path of the program of a model, which is exported to a folder."""
    exported.export(model, str(folder), format="onnx")
    path = folder / programs.PROGRAM
    card = (folder / "README.md").read_text()
    assert f"```python\n{path.read_text()}```" in card
    tree = ast.parse(path.read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
    assert imported & {"gmlp_flax", "jax", "flax"} == set()
    return path


def run_path(path, *arguments, text=b""):
    """The process of a program that has ended, its output as text."""
    words = [sys.executable, path, *arguments]
    done = subprocess.run(words, input=text, capture_output=True, check=False)
    done.stdout = done.stdout.decode()
    done.stderr = done.stderr.decode()
    return done


def check(printed, inputs, model):
    """Fails unless each line is an input, the best name and its probability in percent."""
    expected = []
    for given, predictions in zip(inputs, model.predict(list(inputs), top=1), strict=True):
        for [(name, probability)] in predictions:
            expected.append((given, name.strip(), 100 * probability))
    found = []
    for line, (given, _, _) in zip(printed.splitlines(), expected, strict=True):
        name, _, percent = line.removeprefix(f"{given}: ").rpartition(" ")
        found.append((given, name, pytest.approx(float(percent.rstrip("%")), abs=0.1)))
    assert expected == found


@pytest.mark.parametrize("size", [(8, 8), (40, 64), (97, 33)])
def test_images(tmp_path, size):
    """Of other sizes and shapes than the model's, in colour or grey."""
    model = gmlp_flax.load("digits")
    rng = np.random.default_rng(0)
    paths = []
    for number, mode in enumerate(("L", "RGB")):
        shape = size if mode == "L" else (*size, 3)
        path = tmp_path / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8), mode).save(path)
        paths.append(str(path))
    printed = run_program(model, tmp_path / "out", *paths)
    check(printed, paths, model)


def test_images_of_16_bits_and_transparent_ones(tmp_path):
    """Pillow's own conversion makes the first ones white, and shows the colours that the others
    hide."""
    model = gmlp_flax.load("digits")
    digit = np.zeros((8, 8), np.uint16)
    digit[1:7, 4] = 60_000
    wide = tmp_path / "wide.png"
    Image.fromarray(digit).save(wide)
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[2:6, 2:6, 3] = 255
    transparent = tmp_path / "transparent.png"
    Image.fromarray(pixels, "RGBA").save(transparent)
    paths = [str(wide), str(transparent)]
    path = export_program(model, tmp_path / "out")
    done = run_path(path, *paths)
    check(done.stdout, paths, model)
    floats = tmp_path / "floats.tiff"
    Image.fromarray(np.ones((8, 8), np.float32)).save(floats)
    refused = run_path(path, floats)
    assert refused.returncode == 1
    assert refused.stderr == f"{floats}: its pixels do not have 8 or 16 bits\n"


def test_masked_text(tmp_path):
    """A line that is too long is refused."""
    model = gmlp_flax.load("books_gmlp")
    path = export_program(model, tmp_path / "out")
    done = run_path(path, text="\n".join(LINES).encode())
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    check(done.stdout, LINES, model)
    too_long = run_path(path, text=b"[MASK] sea " * 100)
    assert too_long.returncode == 1
    assert f"of {model.config.model.length} at most" in too_long.stderr
    assert "Traceback" not in too_long.stderr


def test_a_causal_model_continues_as_without_chance(tmp_path):
    """A line that leaves no room to continue is refused."""
    model = gmlp_flax.load("books_amlp_causal")
    line = "The old man looked at the sea and"
    too_long = "the sea " * 100
    path = export_program(model, tmp_path / "out")
    done = run_path(path, text=line.encode())
    [written] = model.generate(line, tokens=20, temperature=0)
    assert done.stdout.strip() == (line + written).strip()
    refused = run_path(path, text=too_long.encode())
    assert refused.returncode == 1
    assert f"of {model.config.model.length - 1} at most" in refused.stderr


@pytest.mark.parametrize("pair", [False, True])
def test_classes_of_text(tmp_path, pair):
    """A new classifier on a model that ships."""
    model = gmlp_flax.load("books_gmlp", classes=["plain", "odd one"])
    lines = ["the sea was calm", "a cold night  on the hills, I think"]
    if pair:
        lines = ["the sea was calm\tit was not", "a cold night\ton the hills, I think"]
        config = config_lib.mutable_copy(model.config)
        config.own.second = "other"
        model = dataclasses.replace(model, task=type(model.task)(config, model.task.files))
    printed = run_program(model, tmp_path / "out", text="\n".join(lines))
    check(printed, lines, model)


def test_what_no_program_can_read_has_none(tmp_path):
    """timm's pixels, and text as bytes."""
    config = config_lib.default(task="image_classification")
    config.data.transform = "timm"
    path = tmp_path / "config.json"
    path.write_text(config_lib.to_json(config))
    assert programs.program(gmlp_flax.create(str(path)), "model.onnx") == ""
    text = gmlp_flax.create("gmlp_base", layers=1, d_model=8, d_ffn=16, length=8, vocab_size=40)
    assert programs.program(text, "model.onnx") == ""
