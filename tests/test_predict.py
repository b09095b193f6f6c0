"""Filling masks and classifying files."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from gmlp_flax import predict
from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.training import folder
from gmlp_flax.training.errors import RunError


def run(*arguments, text=""):
    """Runs the command; returns its exit code, standard output and standard error."""
    command = [sys.executable, "-m", "gmlp_flax.predict", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, input=text)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.smoke
def test_fill_ranks_tokens_by_probability(text_run):
    trained = folder.load(str(text_run))
    tokenizer, line = trained.task.tokenizer, "The [MASK] statement is [MASK]."
    found = predict.fill(trained, line, top=3)
    assert [len(ranked) for ranked in found] == [3, 3]
    # The slow way: the whole sequence through the model, softmax in float64.
    ids = [tokenizer.cls_id, *tokenizer.encode_masked(line), tokenizer.sep_id]
    places = [place for place, token in enumerate(ids) if token == tokenizer.mask_id]
    logits = np.asarray(trained.task.apply(trained.params, np.array([ids]), np.arange(len(ids))[None]))[0]
    for ranked, place in zip(found, places, strict=True):
        scores = logits[place][: tokenizer.vocab_size].astype(np.float64)
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        order = np.argsort(-shares)[:3]
        assert [name for name, _ in ranked] == [tokenizer.piece(int(i)) for i in order]
        np.testing.assert_allclose([share for _, share in ranked], shares[order], rtol=1e-4)


def test_fill_needs_a_mask_and_room(text_run):
    trained = folder.load(str(text_run))
    with pytest.raises(RunError, match=r"there is no \[MASK\] in 'plain'"):
        predict.fill(trained, "plain")
    with pytest.raises(RunError, match="the model reads at most 32"):
        predict.fill(trained, "word " * 60 + "[MASK]")


def test_text_from_standard_input(text_run):
    code, out, error = run(f"--workdir={text_run}", "--top=2", text="A [MASK] b.\n\nThe [MASK] [MASK].\n")
    assert code == 0, error
    lines = out.splitlines()
    assert lines[0] == "A [MASK] b." and lines[2] == "The [MASK] [MASK]."
    assert [line.partition(":")[0] for line in lines] == [
        "A [MASK] b.", "  [MASK] 1", "The [MASK] [MASK].", "  [MASK] 1", "  [MASK] 2",
    ]
    assert all(line.count("%") == 2 for line in lines if "1:" in line)


def test_images_from_files(image_run, tmp_path):
    digit = embedded_digits("heldout")[0]["image"]
    Image.fromarray(digit[..., 0]).save(tmp_path / "digit.png")
    code, out, error = run(f"--workdir={image_run}", "--top=3", str(tmp_path / "digit.png"))
    assert code == 0, error
    trained = folder.load(str(image_run), "best")
    assert trained.weights is trained.ema
    expected = predict.rank_classes(trained, digit[None], top=3)[0]
    assert out == f"{tmp_path / 'digit.png'}: {predict.show(expected)}\n"


def test_mistakes_are_one_line(text_run, image_run, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    cases = [
        ((f"--workdir={text_run}",), "nothing masked", "there is no [MASK] in 'nothing masked'"),
        ((f"--workdir={text_run}", "a.png"), "", "holds a language model: give it text"),
        ((f"--workdir={image_run}",), "", "give image files"),
        ((f"--workdir={image_run}", f"{tmp_path}/none.png"), "", "cannot read"),
        ((f"--workdir={image_run}", f"{tmp_path}/broken.png"), "", "is in no format Pillow knows"),
        ((), "", "--workdir is missing"),
    ]
    for arguments, text, message in cases:
        code, _, error = run(*arguments, text=text)
        assert code == 2, arguments
        assert message in error and len(error.splitlines()) == 1, error
