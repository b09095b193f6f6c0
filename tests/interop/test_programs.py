"""The program on the card of an exported model, run unchanged: with onnxruntime and Pillow or
SentencePiece it gives the answers of gmlp_flax."""

import ast
import dataclasses
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from PIL import Image

import gmlp_flax
from gmlp_flax import config as config_lib
from gmlp_flax.interop import exported, programs
from tests.data.text import byte_pair_files

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
            value = line.removeprefix(start)
            name, _, percent = value.rpartition(" ")
            assert name == expected_name.strip()
            percentage = float(percent.rstrip("%"))
            expected = pytest.approx(100 * probability, abs=0.1)
            assert percentage == expected
    assert next(lines, None) is None


@pytest.mark.parametrize("size", [(8, 8), (40, 64), (97, 33)])
def test_images_of_any_size_are_classified(tmp_path, size):
    model = gmlp_flax.load("digits")
    rng = np.random.default_rng(0)
    grey_numbers = rng.integers(0, 256, size)
    grey = np.uint8(grey_numbers)
    colour_numbers = rng.integers(0, 256, (*size, 3))
    colour = np.uint8(colour_numbers)
    grey_path = tmp_path / "grey.png"
    colour_path = tmp_path / "colour.png"
    Image.fromarray(grey).save(grey_path)
    Image.fromarray(colour).save(colour_path)
    paths = [str(grey_path), str(colour_path)]
    out = tmp_path / "out"
    printed = run_program(model, out, *paths)
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
    out = tmp_path / "out"
    printed = run_program(model, out, *paths)
    check(printed, paths, model)


def test_images_that_cannot_be_read_do_not_stop_the_others(tmp_path):
    model = gmlp_flax.load("digits")
    path = export_program(model, tmp_path / "out")
    floats = tmp_path / "floats.tiff"
    ones = np.ones((8, 8), np.float32)
    Image.fromarray(ones).save(floats)
    digit = str(tmp_path / "digit.png")
    diagonal = np.eye(8, dtype=np.uint8)
    Image.fromarray(diagonal).save(digit)
    truncated = tmp_path / "truncated.png"
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (40, 40), np.uint8)
    Image.fromarray(noise).save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:900])
    text = tmp_path / "notes.txt"
    text.write_text("no image")
    huge = tmp_path / "huge.png"
    Image.new("1", (20_000, 10_000)).save(huge)  # for which Pillow's error is no OSError
    missing = tmp_path / "missing.png"
    done = run_path(path, floats, truncated, text, huge, missing, tmp_path, digit)
    assert done.returncode == 1
    check(done.stdout, [digit], model)
    assert f"{floats}: its pixels do not have 8 or 16 bits\n" in done.stderr
    unreadable = [floats, truncated, text, huge, missing, tmp_path]
    lines = done.stderr.splitlines()
    for name, line in zip(unreadable, lines, strict=True):
        assert line.startswith(f"{name}: ")
    without_images = run_path(path)
    assert without_images.returncode == 1
    assert without_images.stderr == "give images: python run_onnx.py IMAGE ...\n"


@pytest.mark.slow
def test_masked_words_are_predicted_and_long_lines_refused(tmp_path):
    model = gmlp_flax.load("books_gmlp")
    path = export_program(model, tmp_path / "out")
    content = "\n".join(LINES)
    done = run_path(path, text=content.encode())
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    check(done.stdout, LINES, model)
    too_long = run_path(path, text=b"[MASK] sea " * 100)
    assert too_long.returncode == 1
    length = model.config.model.length
    assert f"of {length} at most" in too_long.stderr
    assert "Traceback" not in too_long.stderr


@pytest.mark.slow
def test_causal_models_generate_greedily_and_refuse_full_lines(tmp_path):
    model = gmlp_flax.load("books_amlp_causal")
    line = "The old man looked at the sea and"
    path = export_program(model, tmp_path / "out")
    done = run_path(path, text=line.encode())
    [continuation] = model.generate(line, tokens=20, temperature=0)
    expected = line + continuation
    assert done.stdout.strip() == expected.strip()
    too_long = "the sea " * 100
    refused = run_path(path, text=too_long.encode())
    assert refused.returncode == 1
    longest = model.config.model.length - 1
    assert f"of {longest} at most" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("pair", [False, True])
def test_texts_and_pairs_are_classified(tmp_path, pair):
    """The classifier of a bundled model is new."""
    model = gmlp_flax.load("books_gmlp", classes=["plain", "odd one"])
    lines = ["the sea was calm", "a cold night  on the hills, I think"]
    if pair:
        lines = ["the sea was calm\tit was not", "a cold night\ton the hills, I think"]
        model = with_options(model, {"own.second": "other"})
    text = "\n".join(lines)
    printed = run_program(model, tmp_path / "out", text=text)
    check(printed, lines, model)


@pytest.mark.parametrize("size", [(8, 8), (40, 64), (97, 33)])
def test_images_are_classified_by_timms_pixels(tmp_path, size):
    digits = gmlp_flax.load("digits")
    model = with_options(digits, {"data.transform": "timm"})
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 256, (*size, 3))
    colour = np.uint8(numbers)
    path = str(tmp_path / "colour.png")
    Image.fromarray(colour).save(path)
    printed = run_program(model, tmp_path / "out", path)
    check(printed, [path], model)


def test_timms_pixels_that_are_not_square_have_no_program():
    digits = gmlp_flax.load("digits")
    model = with_options(digits, {"data.transform": "timm"})
    assert programs.program_files(model, "model.onnx")
    model.config.model.image_size = (8, 4)
    assert programs.program_files(model, "model.onnx") == {}


def with_options(model, options):
    """The model with other values of its config."""
    config = config_lib.mutable_copy(model.config)
    config.update_from_flattened_dict(options)
    task = type(model.task)(config, model.task.files)
    return dataclasses.replace(model, task=task)


TEXTS = (
    "The old man looked at the sea and went home.",
    "Hills, hills and more hills: a Naïve view of the night.",
    "she opened the door [SEP] and went in <s>",
)


@pytest.fixture(params=["vocabulary", "over bytes", "over characters"])
def tokenizer(request, tmp_path):
    """The file of a tokenizer that the library `tokenizers` reads."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    if request.param == "vocabulary":
        words = "the old man looked at sea and went home . hills more a view of night she".split()
        codes = range(ord("a"), ord("z") + 1)
        letters = [chr(code) for code in codes]
        continued = [f"##{letter}" for letter in letters]
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        ordinary = dict.fromkeys([*words, *letters])
        pieces = [*special, *ordinary, *continued]
        path = tmp_path / "vocab.txt"
        path.write_text("\n".join(pieces) + "\n")
        (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
        return str(path)
    path = tmp_path / "tokenizer.json"
    make = byte_pair_files.over_bytes
    if request.param == "over characters":
        make = byte_pair_files.over_characters
    trained = make(TEXTS)
    trained.enable_truncation(6)  # of which the program must know nothing
    trained.save(str(path))
    return str(path)


def small_model(tokenizer, tmp_path, task="masked_lm", **options):
    """A text model of one layer, whose answers are not all alike."""
    config = config_lib.default(task=task)
    config.model.causal = task == "causal_lm"
    path = tmp_path / "config.json"
    path.write_text(config_lib.to_json(config))
    sizes = {"layers": 1, "d_model": 16, "d_ffn": 32, "length": 64}
    model = gmlp_flax.create(str(path), tokenizer=tokenizer, **sizes, **options)
    larger = jax.tree.map(lambda leaf: 8 * leaf, model.params)
    return dataclasses.replace(model, params=larger)


@pytest.mark.parametrize("lines", [TEXTS, ("the sea\tthe night", "a [SEP] view\tmore hills")])
def test_texts_are_classified_with_the_tokenizers_library(tokenizer, tmp_path, lines):
    model = small_model(tokenizer, tmp_path, classes=["plain", "odd one", "third"])
    if "\t" in lines[0]:
        model = with_options(model, {"own.second": "other"})
    text = "\n".join(lines)
    printed = run_program(model, tmp_path / "out", text=text)
    check(printed, lines, model)
    written = (tmp_path / "out" / "tokenizer.json").read_text()
    program = (tmp_path / "out" / programs.PROGRAM).read_text()
    assert "tokenizers" in program
    assert json.loads(written)["truncation"] is None


@pytest.mark.parametrize("tokenizer", ["vocabulary", "over bytes"], indirect=True)
def test_masks_are_filled_in_with_the_tokenizers_library(tokenizer, tmp_path):
    lines = ("the [MASK] man [SEP] went", "[MASK] sea, the [MASK]-night  of hills", "a view [MASK]")
    model = small_model(tokenizer, tmp_path)
    text = "\n".join(lines)
    printed = run_program(model, tmp_path / "out", text=text)
    check(printed, lines, model)


def test_texts_are_continued_with_the_tokenizers_library(tokenizer, tmp_path):
    model = small_model(tokenizer, tmp_path, "causal_lm")
    line = "the old man looked at the sea and"
    printed = run_program(model, tmp_path / "out", text=line)
    [continuation] = model.generate(line, tokens=20, temperature=0)
    assert printed.strip() == (line + continuation).strip()


def test_models_of_bytes_have_no_program():
    model = gmlp_flax.create("gmlp_base", layers=1, d_model=8, d_ffn=16, length=8, vocab_size=40)
    assert programs.program_files(model, "model.onnx") == {}
