"""The program on the card of an exported model, run unchanged: with onnxruntime and Pillow or
SentencePiece it gives the answers of gmlp_flax."""

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
    """The output of the program of an exported model."""
    path = export_program(model, folder)
    done = run_path(path, *arguments, text=text.encode())
    assert done.returncode == 0, done.stderr
    return done.stdout


def export_program(model, folder):
    """Exports a model to a folder, and returns the path of its program.

    The program is on the model's card, and does not import gmlp_flax or JAX."""
    exported.export(model, str(folder), format="onnx")
    path = folder / programs.PROGRAM
    program = path.read_text()
    card = (folder / "README.md").read_text()
    assert f"```python\n{program}```" in card
    imported = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported.isdisjoint({"gmlp_flax", "jax", "flax"})
    return path


def run_path(path, *arguments, text=b""):
    """Runs a program, and returns the finished process with its output as text."""
    command = [sys.executable, path, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    done.stdout = done.stdout.decode()
    done.stderr = done.stderr.decode()
    return done


def check(printed, inputs, model):
    """Fails unless each line is an input, the best name and its probability in percent."""
    lines = iter(printed.splitlines())
    all_predictions = model.predict(list(inputs), top=1)
    for source, predictions in zip(inputs, all_predictions, strict=True):
        for [(expected_name, probability)] in predictions:
            line = next(lines)
            start = f"{source}: "
            assert line.startswith(start)
            name, _, percent = line.removeprefix(start).rpartition(" ")
            assert name == expected_name.strip()
            percentage = float(percent.rstrip("%"))
            assert percentage == pytest.approx(100 * probability, abs=0.1)
    assert next(lines, None) is None


@pytest.mark.parametrize("size", [(8, 8), (40, 64), (97, 33)])
def test_images_of_any_size_are_classified(tmp_path, size):
    model = gmlp_flax.load("digits")
    rng = np.random.default_rng(0)
    grey = np.uint8(rng.integers(0, 256, size))
    colour = np.uint8(rng.integers(0, 256, (*size, 3)))
    grey_path = tmp_path / "grey.png"
    colour_path = tmp_path / "colour.png"
    Image.fromarray(grey).save(grey_path)
    Image.fromarray(colour).save(colour_path)
    paths = [str(grey_path), str(colour_path)]
    printed = run_program(model, tmp_path / "out", *paths)
    check(printed, paths, model)


def test_images_with_16_bits_or_transparency_are_classified(tmp_path):
    """Pillow's conversion would make the first one white, and show hidden colours of the second."""
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
    printed = run_program(model, tmp_path / "out", *paths)
    check(printed, paths, model)


def test_images_of_floats_are_refused(tmp_path):
    path = export_program(gmlp_flax.load("digits"), tmp_path / "out")
    floats = tmp_path / "floats.tiff"
    Image.fromarray(np.ones((8, 8), np.float32)).save(floats)
    done = run_path(path, floats)
    assert done.returncode == 1
    assert done.stderr == f"{floats}: its pixels do not have 8 or 16 bits\n"


def test_masked_words_are_predicted_and_long_lines_refused(tmp_path):
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


def test_causal_models_generate_greedily_and_refuse_full_lines(tmp_path):
    model = gmlp_flax.load("books_amlp_causal")
    line = "The old man looked at the sea and"
    path = export_program(model, tmp_path / "out")
    done = run_path(path, text=line.encode())
    [continuation] = model.generate(line, tokens=20, temperature=0)
    assert done.stdout.strip() == (line + continuation).strip()
    too_long = "the sea " * 100
    refused = run_path(path, text=too_long.encode())
    assert refused.returncode == 1
    assert f"of {model.config.model.length - 1} at most" in refused.stderr


@pytest.mark.parametrize("pair", [False, True])
def test_texts_and_pairs_are_classified(tmp_path, pair):
    """The classifier of a bundled model is new."""
    model = gmlp_flax.load("books_gmlp", classes=["plain", "odd one"])
    lines = ["the sea was calm", "a cold night  on the hills, I think"]
    if pair:
        lines = ["the sea was calm\tit was not", "a cold night\ton the hills, I think"]
        config = config_lib.mutable_copy(model.config)
        config.own.second = "other"
        task = type(model.task)(config, model.task.files)
        model = dataclasses.replace(model, task=task)
    printed = run_program(model, tmp_path / "out", text="\n".join(lines))
    check(printed, lines, model)


def test_models_of_timms_pixels_have_no_program(tmp_path):
    config = config_lib.default(task="image_classification")
    config.data.transform = "timm"
    path = tmp_path / "config.json"
    path.write_text(config_lib.to_json(config))
    model = gmlp_flax.create(str(path))
    assert programs.program(model, "model.onnx") == ""


def test_models_of_bytes_have_no_program():
    model = gmlp_flax.create("gmlp_base", layers=1, d_model=8, d_ffn=16, length=8, vocab_size=40)
    assert programs.program(model, "model.onnx") == ""
