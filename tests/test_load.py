"""`gmlp_flax.load`: a run in a few lines of Python."""

import subprocess
import sys

import numpy as np
import pytest

import gmlp_flax
from gmlp_flax.errors import DataError, RunError
from tests import preloaded


def test_text(text_run):
    model = gmlp_flax.load(str(text_run))
    (first, second), (single,) = model.predict(["A [MASK] is a [MASK].", "The [MASK]."], top=3)
    assert [len(each) for each in (first, second, single)] == [3, 3, 3]
    assert first[0][1] >= first[1][1] >= first[2][1] > 0
    assert model.task.tokenizer.vocab_size == 600
    with pytest.raises(RunError, match=r"predict takes a list of inputs: give \['A \[MASK\]'\]"):
        model.predict("A [MASK]")
    with pytest.raises(RunError, match="top is 0: expected 1 or more"):
        model.predict(["A [MASK]"], top=0)
    with pytest.raises(RunError, match=r"generate takes a list of texts: give \['It was'\]"):
        model.generate("It was")
    assert model.predict([]) == []


def test_images_as_files_and_as_arrays(image_run, tmp_path):
    from PIL import Image

    model = gmlp_flax.load(image_run, 12)
    assert model.predict([]) == []
    assert model.step == 12
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 1), np.uint8)
    Image.fromarray(pixels[..., 0]).save(tmp_path / "a.png")
    (file,), (array,) = model.predict([tmp_path / "a.png", pixels], top=2)
    assert file == array and [name for name, _ in file] != []
    for wrong, message in (
        (np.zeros((8, 8, 3), np.uint8), r"array uint8 \[height, width, 1\], not uint8 \[8, 8, 3\]"),
        (np.zeros((8, 8, 1)), r"not float64 \[8, 8, 1\]"),
        ("none.png", "reading .*none.png failed .No such file"),
    ):
        with pytest.raises(DataError, match=message):
            model.predict([wrong])


def test_nothing_else_is_printed(text_run):
    """Outside of our commands, in a fresh process: neither Orbax's warnings nor libtpu's."""
    code = f"import gmlp_flax; print(len(gmlp_flax.load({str(text_run)!r}).predict(['A [MASK].'])))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=preloaded.ROOT, check=False, timeout=120
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
