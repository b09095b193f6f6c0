"""Files in checkpoints: kept to the byte, verified by a checksum, and required to be the same as
the run's."""

import hashlib
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config
from gmlp_flax.checkpoints import assets
from gmlp_flax.checkpoints.checkpoint import Checkpoints, Damaged
from gmlp_flax.checkpoints.retention import Retention
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import RunError
from gmlp_flax.io import files
from gmlp_flax.training import loop, pretrained
from gmlp_flax.training.partition import Partition
from tests.failures import raised
from tests.training import tiny


def digest(content: bytes) -> str:
    """As messages show it."""
    return hashlib.sha256(content).hexdigest()[:12]


def test_other_files_are_refused():
    """A file that only one side has is allowed."""
    then = b"one vocabulary"
    now = b"another"
    assets.require_same({"a": then, "b": b"x"}, {"a": then, "c": b"y"}, "there/3")
    with pytest.raises(
        RunError, match=rf"there/3 .* another a \(SHA-256 {digest(then)}, here {digest(now)}\)"
    ):
        assets.require_same({"a": then}, {"a": now}, "there/3")


@pytest.fixture
def saved(tmp_path):
    """Checkpoints 1 and 2 of a number, with a file of 100 KB that cannot be compressed."""
    content = np.random.default_rng(0).bytes(100_000)
    files = {"vocabulary.txt": content, "empty.json": b""}
    folder = str(tmp_path / "checkpoints")
    checkpoints = Checkpoints(folder, retention=Retention(keep=3), files=files)
    for step in (1, 2):
        checkpoints.save(step, {"x": jnp.float32(step)}, None)
        checkpoints.wait()
    yield (
        checkpoints,
        content,
        Partition.make().describe({"x": jax.ShapeDtypeStruct((), jnp.float32)}),
    )
    checkpoints.close()


@pytest.mark.smoke
def test_files_are_kept_as_they_are(saved, tmp_path):
    checkpoints, content, _ = saved
    assert checkpoints.read_files(2) == {"vocabulary.txt": content, "empty.json": b""}
    assert (tmp_path / "checkpoints/2/files/vocabulary.txt").read_bytes() == content


def test_a_file_that_is_too_large_is_not_read(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SMALL", 99_999)
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), read_only=True)
    with pytest.raises(Damaged, match="vocabulary.txt has more than 99,999 bytes"):
        checkpoints.read_files(2)
    checkpoints.close()


@pytest.mark.parametrize("damage", ["flipped", "longer", "missing"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_taken(saved, tmp_path, damage):
    checkpoints, content, template = saved
    path = tmp_path / "checkpoints/2/files/vocabulary.txt"
    changed = bytearray(content)
    changed[1000] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(changed if damage == "flipped" else content + b"x")
    with pytest.raises(Damaged, match=rf"^{tmp_path}/checkpoints/2\b.*vocabulary.txt"):
        checkpoints.read_files(2)
    step, state = checkpoints.restore_newest(template)
    assert step == 1
    assert float(state["x"]) == 1.0
    assert (tmp_path / "damaged" / "2").is_dir()


def test_restore_with_another_file(saved, tmp_path):
    checkpoints, _, template = saved
    checkpoints.files = {"vocabulary.txt": b"another"}
    with pytest.raises(
        RunError, match=f"{tmp_path}/checkpoints/2 was trained with another vocabulary.txt "
    ):
        checkpoints.restore_newest(template)
    assert checkpoints.steps() == [1, 2]  # another file is not damage: nothing is moved


def other_tokenizer() -> bytes:
    """A vocabulary that is not the embedded text's."""
    return Tokenizer.train([" ".join(tiny.WORDS)] * 20, 320).model


def test_the_vocabulary_of_the_run_folder(text_run, tmp_path):
    """Missing, it is read from the checkpoint, and nothing is written; another one, or half of it,
    is refused and left there."""
    run = shutil.copytree(text_run, tmp_path / "run")
    path = run / "tokenizer.model"
    own = path.read_bytes()
    other = other_tokenizer()
    path.unlink()
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    assert pretrained.load(str(run)).task.tokenizer.model == own
    given = config.load(str(run / "config.json"))
    given.data.tokenizer = "/on/another/machine/tokenizer.model"
    opened = pretrained.open_model(str(run))
    assert opened.load(given).task.tokenizer.model == own
    got = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    assert got == before
    path.write_bytes(other)
    with pytest.raises(
        RunError, match=f"{run}/checkpoints/12 .* another tokenizer.model .*{digest(own)}"
    ):
        pretrained.load(str(run))
    assert path.read_bytes() == other
    assert (run / "checkpoints" / "12").is_dir()
    path.write_bytes(own[:1000])
    assert digest(own[:1000]) in raised(RunError, pretrained.load, str(run))


def test_parameters_of_a_run_with_another_vocabulary(text_run, tmp_path):
    options = config.load(str(text_run / "config.json"))
    options.init_from = str(text_run)
    options.steps = 1
    options.data.tokenizer = str(tmp_path / "other.model")
    (tmp_path / "other.model").write_bytes(other_tokenizer())
    own = digest((text_run / "tokenizer.model").read_bytes())
    with pytest.raises(
        RunError, match=f"{text_run}/checkpoints/.* another tokenizer.model .*{own}"
    ):
        loop.train(options, str(tmp_path / "run"))


def test_classes_in_another_order(image_run, tmp_path):
    run = shutil.copytree(image_run, tmp_path / "run")
    path = run / "classes.json"
    own = path.read_bytes()
    path.write_text(json.dumps(json.loads(own)[::-1]))
    options = config.load(str(run / "config.json"))
    for message in (
        raised(RunError, pretrained.load, str(run)),
        raised(RunError, loop.train, options, str(run)),
    ):
        assert "another classes.json" in message
        assert digest(own) in message
    path.unlink()
    assert pretrained.load(str(run)).classes == tuple(json.loads(own))
    assert not path.exists()
