"""Files in checkpoints are kept unchanged, verified by a checksum, and compared with the run's."""

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
    """The digest that messages show."""
    return hashlib.sha256(content).hexdigest()[:12]


def test_other_files_are_refused():
    then = b"one vocabulary"
    now = b"another"
    message = raised(RunError, assets.require_same, {"a": then}, {"a": now}, "there/3")
    assert message.startswith("there/3 ")
    assert f"another a (SHA-256 {digest(then)}, here {digest(now)})" in message


def test_files_may_be_missing_on_one_side():
    saved = {"a": b"x", "b": b"y"}
    here = {"a": b"x", "c": b"z"}
    assets.require_same(saved, here, "there/3")


@pytest.fixture
def saved(tmp_path):
    """Checkpoints 1 and 2 of a number, with a file of 100 KB that cannot be compressed."""
    content = np.random.default_rng(0).bytes(100_000)
    files = {"vocabulary.txt": content, "empty.json": b""}
    folder = str(tmp_path / "checkpoints")
    checkpoints = Checkpoints(folder, retention=Retention(keep=3), files=files)
    for step in (1, 2):
        state = {"x": jnp.float32(step)}
        checkpoints.save(step, state, None)
        checkpoints.wait()
    shapes = {"x": jax.ShapeDtypeStruct((), jnp.float32)}
    template = Partition.make().describe(shapes)
    yield checkpoints, content, template
    checkpoints.close()


@pytest.mark.smoke
def test_files_are_kept_unchanged(saved, tmp_path):
    checkpoints, content, _ = saved
    assert checkpoints.read_files(2) == {"vocabulary.txt": content, "empty.json": b""}
    assert (tmp_path / "checkpoints/2/files/vocabulary.txt").read_bytes() == content


def test_huge_files_are_not_read(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SMALL", 99_999)
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), read_only=True)
    with pytest.raises(Damaged, match="vocabulary.txt has more than 99,999 bytes"):
        checkpoints.read_files(2)
    checkpoints.close()


@pytest.mark.parametrize("damage", ["flipped", "longer", "missing"])
def test_checkpoints_with_a_damaged_file_are_replaced_by_the_previous_one(saved, tmp_path, damage):
    checkpoints, content, template = saved
    path = tmp_path / "checkpoints/2/files/vocabulary.txt"
    flipped = bytearray(content)
    flipped[1000] ^= 1
    match damage:
        case "missing":
            path.unlink()
        case "flipped":
            path.write_bytes(flipped)
        case "longer":
            path.write_bytes(content + b"x")
    with pytest.raises(Damaged, match=rf"^{tmp_path}/checkpoints/2\b.*vocabulary.txt"):
        checkpoints.read_files(2)
    step, state = checkpoints.restore_newest(template)
    assert step == 1
    assert float(state["x"]) == 1.0
    assert (tmp_path / "damaged" / "2").is_dir()


def test_checkpoints_of_another_file_are_refused(saved, tmp_path):
    checkpoints, _, template = saved
    checkpoints.files = {"vocabulary.txt": b"another"}
    message = raised(RunError, checkpoints.restore_newest, template)
    assert f"{tmp_path}/checkpoints/2 was trained with another vocabulary.txt " in message
    assert checkpoints.steps() == [1, 2], "another file is not damage"


def other_tokenizer() -> bytes:
    """A vocabulary that is not the embedded text's."""
    return Tokenizer.train([" ".join(tiny.WORDS)] * 20, 320).model


@pytest.fixture
def run(text_run, tmp_path):
    """A copy of a run folder."""
    return shutil.copytree(text_run, tmp_path / "run")


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_missing_vocabularies_are_read_from_the_checkpoint(run):
    """Nothing is written to the run folder."""
    path = run / "tokenizer.model"
    content = path.read_bytes()
    path.unlink()
    before = times(run)
    loaded = pretrained.load(str(run))
    assert loaded.task.tokenizer.model == content
    elsewhere = config.load(str(run / "config.json"))
    elsewhere.data.tokenizer = "/on/another/machine/tokenizer.model"
    opened = pretrained.open_model(str(run))
    assert opened.load(elsewhere).task.tokenizer.model == content
    assert times(run) == before


def test_other_vocabularies_in_the_run_folder_are_refused(run):
    path = run / "tokenizer.model"
    content = path.read_bytes()
    other = other_tokenizer()
    path.write_bytes(other)
    message = raised(RunError, pretrained.load, str(run))
    assert message.startswith(f"{run}/checkpoints/12 ")
    assert "another tokenizer.model " in message
    assert digest(content) in message
    assert path.read_bytes() == other
    assert (run / "checkpoints" / "12").is_dir()


def test_truncated_vocabularies_in_the_run_folder_are_refused(run):
    path = run / "tokenizer.model"
    truncated = path.read_bytes()[:1000]
    path.write_bytes(truncated)
    assert digest(truncated) in raised(RunError, pretrained.load, str(run))


def test_parameters_of_another_vocabulary_are_refused(text_run, tmp_path):
    options = config.load(str(text_run / "config.json"))
    options.init_from = str(text_run)
    options.steps = 1
    other = tmp_path / "other.model"
    other.write_bytes(other_tokenizer())
    options.data.tokenizer = str(other)
    content = (text_run / "tokenizer.model").read_bytes()
    message = raised(RunError, loop.train, options, str(tmp_path / "run"))
    assert message.startswith(f"{text_run}/checkpoints/")
    assert "another tokenizer.model " in message
    assert digest(content) in message


def test_classes_in_another_order_are_refused(image_run, tmp_path):
    run = shutil.copytree(image_run, tmp_path / "run")
    path = run / "classes.json"
    content = path.read_bytes()
    names = json.loads(content)
    path.write_text(json.dumps(names[::-1]))
    options = config.load(str(run / "config.json"))
    of_loading = raised(RunError, pretrained.load, str(run))
    of_training = raised(RunError, loop.train, options, str(run))
    for message in (of_loading, of_training):
        assert "another classes.json" in message
        assert digest(content) in message
    path.unlink()
    loaded = pretrained.load(str(run))
    assert loaded.classes == tuple(names)
    assert not path.exists()
