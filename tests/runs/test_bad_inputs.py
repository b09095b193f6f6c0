"""Each mistake is one line that says what to do, with exit code 2, before anything is compiled."""

import numpy as np
import PIL.Image
import pytest

from tests import preloaded
from tests.runs.command import assert_one_line_error

IMAGES = (
    "--config=configs/own_images.py",
    "--config.steps=3",
    "--config.batch_size=4",
    "--config.model.layers=1",
    "--config.model.d_model=8",
    "--config.model.d_ffn=16",
    "--config.model.image_size=(8,8)",
)


@pytest.fixture
def images(tmp_path):
    """Two classes of four images."""
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for number in range(4):
            PIL.Image.fromarray(rng.integers(0, 255, (12, 12, 3), np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "images"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config.data.train=nowhere.txt"], ["config.data.train: nothing at 'nowhere.txt'", "check the path"]),
        (["--config.data.heldout=nowhere.txt"], ["config.data.heldout: nothing at 'nowhere.txt'", "check the path"]),
        (["--config.data.tokenizer=nowhere.model"], ["config.data.tokenizer is 'nowhere.model'", "does not exist"]),
        (["--config.model.length=4000"], ["tokens, a sequence of length 4000 needs 3998", "config.model.length"]),
        (["--config.model.length=2"], ["length=2", "at least 3"]),
        (["--config.model.vocab_size=100"], ["vocab_size=100 is too small"]),
        (["--config.model.d_ffn=17"], ["model.d_ffn is 17", "even"]),
        (["--config.init_from=/nowhere"], ["config.init_from is /nowhere", "expected a run folder"]),
        (
            ["--config.batch_size=6", "--config.optimizer.grad_accum_steps=4"],
            ["config.batch_size is 6", "4 microbatches"],
        ),
        (["--config.seed=-1"], ["config.seed is -1", "at least 0"]),
        (["--config.checkpoint.metric=perplexty"], ["checkpoint.metric is 'perplexty'", "one of perplexity, accuracy"]),
        (["--config.optimizer.freeze=/spatail/"], ["config.optimizer.freeze: '/spatail/' matches no parameter"]),
    ],
    ids=lambda value: value[0].partition("=")[0].rpartition(".")[2] if value[0].startswith("--") else "",
)
def test_text(commands, text, tmp_path, flags, words):
    assert_one_line_error(commands(text, *flags, f"--workdir={tmp_path / 'run'}"), *words)


def test_empty_corpus(commands, text, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    flags = [f"--config.data.train={tmp_path / 'empty.txt'}", f"--workdir={tmp_path / 'run'}"]
    assert_one_line_error(commands(text, *flags), "config.data.train: no text to train a tokenizer on")


def test_tokenizer_larger_than_the_model(commands, text, finished, tmp_path):
    flags = [f"--config.data.tokenizer={finished / 'tokenizer.model'}", "--config.model.vocab_size=100"]
    assert_one_line_error(
        commands(text, *flags, f"--workdir={tmp_path / 'run'}"), "pieces, config.model.vocab_size is 100", "raise it"
    )


@pytest.mark.parametrize("devices", [2])
def test_batch_that_devices_cannot_share(commands, text, tmp_path, devices):
    variables = {"XLA_FLAGS": preloaded.devices(devices)}
    result = commands(text, "--config.batch_size=7", f"--workdir={tmp_path / 'run'}", **variables)
    assert_one_line_error(result, "config.batch_size is 7", "which 2 devices cannot share evenly: set it to 6 or 8")
    result = commands(text, "--config.eval.batch_size=3", f"--workdir={tmp_path / 'run'}", **variables)
    assert_one_line_error(result, "config.eval.batch_size is 3", "set it to 2 or 4")


def test_workdir_that_cannot_be_written_to(commands, text, tmp_path):
    (tmp_path / "file").touch()
    result = commands(text, f"--workdir={tmp_path / 'file' / 'run'}")
    assert_one_line_error(result, f"{tmp_path / 'file' / 'run'} failed", "Not a directory")


def test_parameters_of_another_shape(commands, text, finished, tmp_path):
    flags = ["--config.model.d_model=12", f"--config.init_from={finished}", f"--workdir={tmp_path / 'run'}"]
    result = commands(text, *flags)
    assert_one_line_error(
        result, "does not fit this config", "embedding is float32[320, 8], not float32[320, 12]", "; and 5 more"
    )


def test_image_that_does_not_decode(commands, images, tmp_path):
    for path in images.glob("*/*.png"):
        path.write_bytes(path.read_bytes()[:50])
    result = commands(*IMAGES, f"--config.data.train={images}", f"--workdir={tmp_path / 'run'}")
    assert_one_line_error(result, ".png")


def test_class_without_images(commands, images, tmp_path):
    (images / "eels").mkdir()
    result = commands(*IMAGES, f"--config.data.train={images}", f"--workdir={tmp_path / 'run'}")
    assert_one_line_error(result, "class folder 'eels' is empty")


def test_patches_that_do_not_tile(commands, images, tmp_path):
    flags = [f"--config.data.train={images}", "--config.model.patch_size=(3,4)", f"--workdir={tmp_path / 'run'}"]
    result = commands(*IMAGES, *flags)
    assert_one_line_error(result, "config.model.image_size is (8, 8): patches of (3, 4) do not tile it; choose others")


def test_classes_of_another_run(commands, images, tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    (workdir / "classes.json").write_text('["cats", "dogs", "eels"]')
    result = commands(*IMAGES, f"--config.data.train={images}", f"--workdir={workdir}")
    assert_one_line_error(result, "has 2 classes which differ from those of", "classes.json")
