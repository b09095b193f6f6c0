import contextlib
import errno
import math
import os
import shutil
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint._src.serialization import tensorstore_utils

from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints import assets, checkpoint
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.manifest import MANIFEST_FILE
from gmlp_flax.checkpoints.retention import Retention
from gmlp_flax.errors import RunError, StorageError
from gmlp_flax.io import files, storage
from gmlp_flax.training import optimizer, step
from gmlp_flax.training.partition import Partition
from tests.failures import raised
from tests.training import tiny

# Warnings about reads that Orbax abandons when another one fails.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


BEST = Retention(keep=1, keep_best=1, metric="loss")


class Wide(tiny.Line):
    """Orbax keeps arrays below 1 KB inside its index, where damage is noticed. This array is
    larger."""

    def init(self, key):
        return {"line": {"kernel": jax.random.normal(key, (1000,)), "bias": jnp.zeros(())}}


class Folder:
    """A run folder's checkpoints of a small state with optimizer state and running mean."""

    def __init__(self, root: Path, config):
        config.optimizer.ema = 0.9
        self.root = root
        self.task = Wide(config)
        self.optimizer = optimizer.make(config, self.task.shapes(), self.task.param_metadata())
        self.make = jax.jit(
            lambda seed: step.init_state(
                self.task, self.optimizer, self.task.init(jax.random.key(seed))
            )
        )
        self.template = Partition.make().describe(jax.eval_shape(self.make, 0))
        self.log: list[str] = []

    def open(self, retention=Retention(keep=3), **options) -> contextlib.closing[Checkpoints]:
        folder = str(self.root / "checkpoints")
        return contextlib.closing(Checkpoints(folder, retention=retention, **options))

    def state(self, number: int):
        """A state that differs in every element for each number."""
        return jax.tree.map(lambda x: x + jnp.array(number, x.dtype), self.make(number))

    def save(self, *steps: int, metrics=None, **options) -> list[int]:
        """Saves states, one after another; returns the steps that are kept."""
        with self.open(**options) as checkpoints:
            for number in steps:
                checkpoints.save(number, self.state(number), (metrics or {}).get(number))
                checkpoints.wait()
            return checkpoints.steps()

    def newest(self, template=None, **options) -> tuple[int, object] | None:
        with self.open(**options) as checkpoints:
            return checkpoints.restore_newest(template or self.template)

    def assert_newest(self, number: int | None = None) -> None:
        """Asserts that the newest good checkpoint (of this step, if given) holds the state that was
        saved."""
        found, state = self.newest()
        assert number in (found, None)
        assert jax.tree.structure(state) == jax.tree.structure(self.template)
        jax.tree.map(np.testing.assert_array_equal, state, self.state(found))

    def files(self, number: int) -> list[Path]:
        return sorted(
            path for path in (self.root / "checkpoints" / str(number)).rglob("*") if path.is_file()
        )

    def data_file(self, number: int) -> Path:
        """The largest file of array data."""
        return max(
            (self.root / "checkpoints" / str(number)).rglob("d/*"),
            key=lambda path: path.stat().st_size,
        )


@pytest.fixture
def folder(tmp_path, config, monkeypatch):
    found = Folder(tmp_path, config)
    monkeypatch.setattr(
        checkpoint.logging, "error", lambda text, *values: found.log.append(text % values)
    )
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints 3 and 5, to copy: saving takes longer than damaging."""
    root = tmp_path_factory.mktemp("saved")
    Folder(root, gmlp_config.default()).save(3, 5)
    return root


@pytest.fixture
def two(folder, saved):
    shutil.copytree(saved / "checkpoints", folder.root / "checkpoints")
    return folder


@pytest.mark.smoke
def test_newest_is_restored_exactly(two):
    two.assert_newest(5)
    assert two.log == []


def test_part_of_a_state_can_be_restored_and_reading_writes_nothing(two):
    before = {path: path.stat().st_mtime_ns for path in two.root.rglob("*")}
    with two.open(read_only=True) as checkpoints:
        params = checkpoints.restore(3, {"params": two.template.params})["params"]
    jax.tree.map(np.testing.assert_array_equal, params, two.state(3).params)
    got = {path: path.stat().st_mtime_ns for path in two.root.rglob("*")}
    assert got == before


def test_newest_and_best_are_kept(folder):
    metrics = {
        1: {"loss": 0.5},
        2: {"loss": 0.1},
        3: None,
        4: {"loss": float("nan")},
        5: {"loss": 0.3},
        6: None,
    }
    rules = Retention(keep=2, keep_best=1, metric="loss")
    assert folder.save(*metrics, metrics=metrics, retention=rules) == [2, 5, 6]
    with folder.open(rules) as checkpoints:
        got = [checkpoints.pick(which) for which in ("latest", "best", "5")]
        assert got == [6, 2, 5]
        with pytest.raises(
            RunError, match=r"has no checkpoint '4': give latest, best, or one of 2, 5, 6$"
        ):
            checkpoints.pick("4")


def test_flipped_byte_in_array_data(two):
    """Orbax restores most flipped bits without an error: only our checksum notices them."""
    rng = np.random.default_rng(0)
    messages = []
    original = two.data_file(5).read_bytes()
    for _ in range(6):
        data = bytearray(original)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        two.data_file(5).write_bytes(data)
        two.assert_newest()
        if two.log:
            (message,), two.log = two.log, []
            messages.append(message)
            assert f"{two.root}/checkpoints/5" in message
            assert f"it is moved to {two.root}/damaged/5" in message
            shutil.move(two.root / "damaged" / "5", two.root / "checkpoints" / "5")
    assert len(messages) > 3
    assert any(
        message.partition("the checksum of ")[2].startswith(("params", "ema"))
        for message in messages
    )


@pytest.mark.parametrize(
    ("name", "damage"), [("data", "half"), ("_METADATA", "empty"), ("manifest.ocdbt", "gone")]
)
def test_damaged_file(two, name, damage):
    path = (
        two.data_file(5)
        if name == "data"
        else next(path for path in two.files(5) if path.name == name)
    )
    if damage == "gone":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size // 2 if damage == "half" else 0)
    two.assert_newest(3)
    assert len(two.log) == 1
    assert f"{two.root}/checkpoints/5" in two.log[0]
    assert "moved to" in two.log[0]
    assert (two.root / "damaged" / "5").is_dir()
    assert not (two.root / "checkpoints" / "5").exists()


def test_no_good_checkpoint(two):
    for number in (3, 5):
        os.truncate(two.data_file(number), 10)
    with pytest.raises(RunError, match=r"no checkpoint in \S+ is good \(tried 3, 5\)"):
        two.newest()
    assert len(two.log) == 2


def test_half_written_checkpoint_is_ignored_and_named(two):
    half = two.root / "checkpoints" / "7.orbax-checkpoint-tmp"
    shutil.copytree(two.root / "checkpoints" / "5", half)
    two.assert_newest(5)
    assert two.log == [f"{half} was never finished and is ignored"]


def test_mismatch_lists_every_path(two):
    line = two.template.params["line"]
    bias = line["bias"]
    kernel = line["kernel"]
    wrong = {
        "kernel": kernel.update(shape=(4,)),
        "bias": bias.update(dtype=jnp.bfloat16),
        "scale": bias,
    }
    with pytest.raises(RunError) as caught:
        two.newest(two.template._replace(params={"line": wrong}))
    for problem in (
        "kernel is float32[1000], not float32[4]",
        "bias is float32[], not bfloat16[]",
        "scale is missing",
    ):
        assert f"params/line/{problem}" in str(caught.value)
    assert two.log == []
    assert (two.root / "checkpoints" / "5").is_dir()


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_state_that_is_not_finite_is_refused(two, value):
    state = two.state(9)
    state.opt_state[1][0].mu["line"]["kernel"] = jnp.zeros(1000).at[500].set(value)
    with two.open() as checkpoints:
        with pytest.raises(RunError, match=f"step 9 is not finite.* {two.root}/checkpoints/5"):
            checkpoints.save(9, state, None)
        assert checkpoints.steps() == [3, 5]


def test_failed_save_names_the_survivor(two, monkeypatch):
    full = mock.Mock(side_effect=OSError(28, "No space left on device\nand a long story"))
    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    with pytest.raises(
        RunError, match=rf"{two.root}/checkpoints/5; saving step 9 failed \(No space left"
    ) as caught:
        two.save(9)
    assert "\n" not in str(caught.value)


def failing(function, error: BaseException, times: float):
    """A function that first raises an error so many times; and a list of its calls."""
    calls = []

    def fails(*args, **options):
        calls.append(args)
        if len(calls) <= times:
            raise error
        return function(*args, **options)

    return fails, calls


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0, 0.0))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO], ids=errno.errorcode.get)
def test_read_error_is_not_damage(two, quick, monkeypatch, number):
    """It is tried again, then told. A restart may help against some errors. More of them are in
    test_reading.py."""
    before = {path: path.read_bytes() for path in two.files(3) + two.files(5)}
    fails, calls = failing(
        ocp.CheckpointManager.restore, OSError(number, os.strerror(number)), math.inf
    )
    monkeypatch.setattr(ocp.CheckpointManager, "restore", fails)
    with pytest.raises(
        RunError, match=f"{two.root}/checkpoints/5 .*{os.strerror(number)}"
    ) as caught:
        two.newest()
    assert isinstance(caught.value, StorageError) == (number != errno.EACCES)
    assert not isinstance(caught.value, checkpoint.Damaged)
    assert "\n" not in str(caught.value)
    assert len(calls) == 4
    assert two.log == []
    assert not (two.root / "damaged").exists()
    got = {path: path.read_bytes() for path in two.files(3) + two.files(5)}
    assert got == before


def test_read_error_that_passes(two, quick, monkeypatch):
    fails, calls = failing(ocp.CheckpointManager.restore, MemoryError(), 2)
    monkeypatch.setattr(ocp.CheckpointManager, "restore", fails)
    assert two.newest()[0] == 5
    assert len(calls) == 3


def test_file_that_cannot_be_read_is_not_damage_whatever_orbax_says(two, quick, monkeypatch):
    """An error without a number, in a checkpoint of which a file cannot be read now."""
    monkeypatch.setattr(
        ocp.CheckpointManager, "restore", mock.Mock(side_effect=ValueError("no structure"))
    )
    unreadable = mock.Mock(side_effect=storage.storage_error("reading", OSError(errno.EIO, "I/O")))
    with monkeypatch.context() as broken, pytest.raises(StorageError, match="Input/output error"):
        broken.setattr(files, "open_file", unreadable)
        two.newest()
    with pytest.raises(RunError, match=r"no checkpoint in \S+ is good"):
        two.newest()


def test_a_damaged_checkpoint_is_best_only_if_all_are(folder):
    """Behind those without an evaluation, though it is the newest."""
    rules = Retention(keep=3, metric="loss")
    folder.save(1, 2, 3, metrics={3: {"loss": 1.0}}, retention=rules)
    for path in folder.files(3):
        path.write_bytes(b"")
    with folder.open(rules) as checkpoints:
        assert checkpoints.pick("best") == 2
        folder.log.clear()


def test_best_stays_when_its_metrics_are_tampered_with(folder):
    """What is not verified is never deleted: a flipped bit must not make the best checkpoint the
    worst."""
    metrics = {1: {"loss": 839.0}, 2: {"loss": 2e7}}
    assert folder.save(1, 2, metrics=metrics, retention=BEST) == [1, 2]
    (manifest,) = [path for path in folder.files(1) if path.name == MANIFEST_FILE]
    content = manifest.read_text()
    assert '"loss": 839.0' in content
    manifest.write_text(content.replace('"loss": 839.0', '"loss": 9e39'))
    with folder.open(BEST) as checkpoints:
        # without having restored: nothing is known of 1 and 2
        checkpoints.save(3, folder.state(3), {"loss": 2.0e9})
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2, 3]
    with folder.open(BEST) as checkpoints:
        assert checkpoints.pick("best") == 2
        assert len(folder.log) == 1
        assert "checkpoints/1" in folder.log.pop()
        assert checkpoints.restore_newest(folder.template)[0] == 3
        assert len(folder.log) == 1
        assert f"moved to {folder.root}/damaged/1" in folder.log[0]
        checkpoints.save(4, folder.state(4), {"loss": 3.0e9})
        checkpoints.wait()
        assert checkpoints.steps() == [2, 4]


def test_a_state_that_was_evaluated_after_it_was_saved(folder):
    """It can be the best."""
    folder.save(1, 2, metrics={1: {"loss": 2.0}}, retention=BEST)
    lines = '{"step": 1, "eval": {"loss": 0.0}}\n{"step": 2, "eval": {"loss": 1.0}}\n'
    (folder.root / "metrics.jsonl").write_text(lines)
    with folder.open(BEST) as checkpoints:
        assert checkpoints.pick("best") == 2  # what a checkpoint says of itself counts more
        assert checkpoints.restore_newest(folder.template)[0] == 2
        checkpoints.set_metrics(2, {"loss": 1.0})
        for number, loss in (3, 1.5), (4, 0.5):
            checkpoints.save(number, folder.state(number), {"loss": loss})
        checkpoints.wait()
        assert checkpoints.steps() == [4]


def test_damaged_metrics_of_later_evaluations_are_named(folder):
    folder.save(1, retention=BEST)
    (folder.root / "metrics.jsonl").write_text('{"step": 1, "eval": {"loss": 2.0}}\n')
    with folder.open(BEST) as checkpoints:
        assert checkpoints.restore_newest(folder.template)[0] == 1
        for number in 2, 3:
            checkpoints.save(number, folder.state(number), {"loss": 1 / number})
        checkpoints.wait()
        assert checkpoints.steps() == [3]
    (folder.root / "metrics.jsonl").write_text("[]\n")
    with folder.open(BEST) as checkpoints:
        checkpoints.save(4, folder.state(4), None)
        checkpoints.wait()
        assert "metrics.jsonl, line 1 is damaged" in raised(RunError, checkpoints.pick, "best")


def test_renamed_and_foreign_checkpoints_are_refused(two, tmp_path):
    inside = two.root / "checkpoints"
    (inside / "5").rename(inside / "7")
    assert raised(RunError, two.newest).startswith(f"{inside}/7 is the checkpoint of step 5")
    (inside / "7").rename(inside / "5")
    with pytest.raises(
        RunError, match=rf"^{inside}/5 is of another run \(\) than its folder \(mine\)"
    ):
        two.newest(run="mine")
    assert two.log == []
    assert (inside / "5").is_dir()
    # it would count as the best, and the run's own best would be deleted
    (inside / "3").rename(inside / "4")
    assert raised(RunError, two.newest).startswith(f"{inside}/4 is the checkpoint of step 3")


EVIL = (
    "../x.json",
    "/tmp/x.json",
    "",
    "a\0.json",
    "a\\b.json",
    ".json",
    "config.json",
    "commit_success.txt",  # Orbax's mark of a finished folder
    "x.py",
    "x\n.txt",
)


@pytest.mark.parametrize("name", [*EVIL, "a" * 200 + ".txt"])
def test_evil_names(name):
    assert raised(RunError, assets.check_names, [name], "there").startswith(
        "there has a file named"
    )


def test_evil_names_in_a_checkpoint_that_somebody_else_made(two, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(assets, "check_names", lambda *_: None)
        two.save(8, files={"../x.json": b"pwned"})
    with (
        two.open(read_only=True) as checkpoints,
        pytest.raises(RunError, match="checkpoints/8 has a file named"),
    ):
        checkpoints.read_files(8)


def test_a_checkpoint_of_version_0_2_is_refused_and_stays(two):
    """It was one unnamed item of Orbax."""
    path = two.root / "checkpoints" / "5"
    shutil.rmtree(path)
    with contextlib.closing(ocp.CheckpointManager(two.root / "checkpoints")) as manager:
        manager.save(5, args=ocp.args.PyTreeSave({"state": {"x": np.zeros(3)}}))
        manager.wait_until_finished()
    before = sorted(path.rglob("*"))
    line = raised(RunError, two.newest)
    assert line.startswith(f"{path} ")
    assert "gmlp_flax 0.2.0" in line
    assert "\n" not in line
    assert sorted(path.rglob("*")) == before
    assert two.log == []


def test_tensorstore_takes_the_limits():
    """Orbax 0.12.8 has no option for them: its own context is changed."""
    checkpoint.limit_retries()
    for ocdbt in (False, True):
        context = tensorstore_utils.get_ts_context(use_ocdbt=ocdbt)
        assert context["gcs_request_retries"].to_json() == checkpoint.RETRIES
