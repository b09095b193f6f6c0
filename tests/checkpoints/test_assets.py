"""Files in checkpoints: kept to the byte, verified by a checksum, and required to be the same as
the run's."""

import hashlib
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax import config
from gmlp_flax.checkpoints import assets
from gmlp_flax.checkpoints.checkpoint import Checkpoints, Damaged
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import files
from gmlp_flax.training import loading, loop
from gmlp_flax.training.partition import Partition
from tests.failures import raised
from tests.training import tiny

contents = st.dictionaries(st.text(min_size=1), st.binary())


def digest(content: bytes) -> str:
    """As messages show it."""
    return hashlib.sha256(content).hexdigest()[:12]


@pytest.mark.smoke
@settings(max_examples=30)
@given(contents)
def test_round_trip(files):
    tree = assets.pack(files)
    assert assets.unpack(tree) == (files, [])
    assert all(entry["data"].dtype == entry["sha256"].dtype == np.uint8 for entry in tree.values())
    assert all(
        tree[name]["sha256"].tobytes() == hashlib.sha256(content).digest()
        for name, content in files.items()
    )


@settings(max_examples=30)
@given(st.dictionaries(st.text(min_size=1), st.binary(min_size=1), min_size=1), st.data())
def test_any_flipped_bit_is_told(files, data):
    name = data.draw(st.sampled_from(sorted(files)))
    part = data.draw(st.sampled_from(["data", "sha256"]))
    tree = assets.pack(files)
    tree[name][part] = tree[name][part].copy()
    tree[name][part][data.draw(st.integers(0, len(tree[name][part]) - 1))] ^= 1 << data.draw(
        st.integers(0, 7)
    )
    assert assets.unpack(tree)[1] == [name]


def test_other_files_are_refused():
    """A file that only one side has is allowed."""
    then, now = b"one vocabulary", b"another"
    assets.require_same({"a": then, "b": b"x"}, {"a": then, "c": b"y"}, "there/3")
    with pytest.raises(
        RunError, match=rf"there/3 .* another a \(SHA-256 {digest(then)}, here {digest(now)}\)"
    ):
        assets.require_same({"a": then}, {"a": now}, "there/3")


@pytest.fixture
def saved(tmp_path):
    """Checkpoints 1 and 2 of a number, with a file of 100 KB that cannot be compressed."""
    content = np.random.default_rng(0).bytes(100_000)
    checkpoints = Checkpoints(
        str(tmp_path / "checkpoints"), keep=3, files={"vocabulary.txt": content}
    )
    for step in (1, 2):
        checkpoints.save(step, {"x": jnp.float32(step)}, None)
        checkpoints.wait()
    yield (
        checkpoints,
        content,
        Partition.make().describe({"x": jax.ShapeDtypeStruct((), jnp.float32)}),
    )
    checkpoints.close()


def test_sizes_are_checked_before_anything_is_read(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SMALL", 99_999)
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), keep=3, read_only=True)
    assert "checkpoints/2 claims a file of more than 99,999 bytes" in raised(
        RunError, checkpoints.read_files, 2
    )
    checkpoints.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_byte_flipped_on_disk(saved, tmp_path):
    checkpoints, content, template = saved
    damaged = 0
    for path in (tmp_path / "checkpoints" / "2").rglob("d/*"):
        if (place := path.read_bytes().find(content[1000:1032])) >= 0:
            data = bytearray(path.read_bytes())
            data[place] ^= 1
            path.write_bytes(data)
            damaged += 1
    assert damaged == 1
    with pytest.raises(
        Damaged, match=f"^{tmp_path}/checkpoints/2: the checksum of its vocabulary.txt differs$"
    ):
        checkpoints.read_files(2)
    step, state = checkpoints.restore_newest(template)
    assert (step, float(state["x"])) == (1, 1.0)
    assert (tmp_path / "damaged" / "2").is_dir()


def test_restore_with_another_file(saved, tmp_path):
    checkpoints, _, template = saved
    checkpoints.files = {"vocabulary.txt": b"another"}
    with pytest.raises(
        RunError, match=f"{tmp_path}/checkpoints/2 was trained with another vocabulary.txt "
    ):
        checkpoints.restore_newest(template)
    assert checkpoints.steps() == [1, 2]  # another file is not damage: nothing is put aside


def other_tokenizer() -> bytes:
    """A vocabulary that is not the embedded text's."""
    return Tokenizer.train([" ".join(tiny.WORDS)] * 20, 320).model


def test_the_vocabulary_of_the_run_folder(text_run, tmp_path):
    """Missing, it is written back; another one, or half of it, is refused and left there."""
    run = shutil.copytree(text_run, tmp_path / "run")
    path = run / "tokenizer.model"
    own, other = path.read_bytes(), other_tokenizer()
    path.unlink()
    assert loading.load(str(run)).task.tokenizer.model == own == path.read_bytes()
    path.write_bytes(other)
    with pytest.raises(
        RunError, match=f"{run}/checkpoints/12 .* another tokenizer.model .*{digest(own)}"
    ):
        loading.load(str(run))
    assert path.read_bytes() == other and (run / "checkpoints" / "12").is_dir()
    path.write_bytes(own[:1000])
    assert raised(DataError, loading.load, str(run)).startswith(f"{path}: damaged")


def test_parameters_of_a_run_with_another_vocabulary(text_run, tmp_path):
    options = config.load(str(text_run / "config.json"))
    options.init_from, options.steps = str(text_run), 1
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
    with pytest.raises(RunError, match=rf"was trained with another classes.json .*{digest(own)}"):
        loading.load(str(run))
    with pytest.raises(DataError, match=f"10 classes .* {path}"):
        loop.train(config.load(str(run / "config.json")), str(run))
    path.unlink()
    assert loading.load(str(run)).task.classes == tuple(json.loads(own))
    assert path.read_bytes() == own
