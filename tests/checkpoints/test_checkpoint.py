import contextlib
import errno
import math
import os
import re
import shutil
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from numpy.testing import assert_array_equal
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
    """A model with an array that is larger than 1 KB. Orbax keeps smaller ones in its index, where
    it notices damage."""

    def init(self, key):
        return {"line": {"kernel": jax.random.normal(key, (1000,)), "bias": jnp.zeros(())}}


class Folder:
    """The checkpoints of a run with a small state that has optimizer state and running means."""

    def __init__(self, root: Path, config):
        config.optimizer.ema = 0.9
        self.root = root
        self.task = Wide(config)
        metadata = self.task.param_metadata()
        self.optimizer = optimizer.make(config, self.task.shapes(), metadata)
        self.make = jax.jit(self.init_state)
        shapes = jax.eval_shape(self.make, 0)
        self.template = Partition.make().describe(shapes)
        self.log: list[str] = []

    def init_state(self, seed):
        params = self.task.init(jax.random.key(seed))
        return step.init_state(self.task, self.optimizer, params)

    def open(self, retention=Retention(keep=3), **options) -> contextlib.closing[Checkpoints]:
        folder = str(self.root / "checkpoints")
        checkpoints = Checkpoints(folder, retention=retention, **options)
        return contextlib.closing(checkpoints)

    def state(self, number: int):
        """A state that differs in every element for each number."""

        def add(leaf):
            return leaf + jnp.array(number, leaf.dtype)

        return jax.tree.map(add, self.make(number))

    def save(self, *steps: int, metrics=None, **options) -> list[int]:
        """Saves states, one after another; returns the steps that are kept."""
        metrics = metrics or {}
        with self.open(**options) as checkpoints:
            for number in steps:
                checkpoints.save(number, self.state(number), metrics.get(number))
                checkpoints.wait()
            return checkpoints.steps()

    def newest(self, template=None, **options) -> tuple[int, object] | None:
        with self.open(**options) as checkpoints:
            return checkpoints.restore_newest(template or self.template)

    def assert_newest(self, number: int | None = None) -> None:
        """Asserts that the newest good checkpoint (of this step, if given) has the saved state."""
        found, state = self.newest()
        if number is not None:
            assert found == number
        structure = jax.tree.structure(state)
        assert structure == jax.tree.structure(self.template)
        expected = self.state(found)
        jax.tree.map(assert_array_equal, state, expected)

    def folder_of(self, number: int) -> Path:
        return self.root / "checkpoints" / str(number)

    def files(self, number: int) -> list[Path]:
        paths = self.folder_of(number).rglob("*")
        return sorted(path for path in paths if path.is_file())

    def contents(self) -> dict[Path, bytes]:
        """The files of checkpoints 3 and 5."""
        paths_of_3 = self.files(3)
        paths = paths_of_3 + self.files(5)
        return {path: path.read_bytes() for path in paths}

    def data_file(self, number: int) -> Path:
        """The largest file of array data."""
        paths = self.folder_of(number).rglob("d/*")
        return max(paths, key=lambda path: path.stat().st_size)


@pytest.fixture
def folder(tmp_path, config, monkeypatch):
    found = Folder(tmp_path, config)

    def log_error(text, *values):
        found.log.append(text % values)

    monkeypatch.setattr(checkpoint.logging, "error", log_error)
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints 3 and 5. Copying it is faster than saving them for each test."""
    root = tmp_path_factory.mktemp("saved")
    Folder(root, gmlp_config.default()).save(3, 5)
    return root


@pytest.fixture
def two(folder, saved):
    shutil.copytree(saved / "checkpoints", folder.root / "checkpoints")
    return folder


@pytest.mark.smoke
def test_the_newest_checkpoint_is_restored_exactly(two):
    two.assert_newest(5)
    assert two.log == []


def test_parts_of_a_state_are_restored_without_writing(two):
    before = {}
    for path in two.root.rglob("*"):
        before[path] = path.stat().st_mtime_ns
    template = {"params": two.template.params}
    with two.open(read_only=True) as checkpoints:
        restored = checkpoints.restore(3, template)
    expected = two.state(3).params
    params = restored["params"]
    jax.tree.map(assert_array_equal, params, expected)
    after = {}
    for path in two.root.rglob("*"):
        after[path] = path.stat().st_mtime_ns
    assert after == before


def test_the_newest_and_best_are_kept(folder):
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
        picked = [checkpoints.pick(which) for which in ("latest", "best", "5")]
        assert picked == [6, 2, 5]
        message = raised(RunError, checkpoints.pick, "4")
    assert message.endswith("has no checkpoint '4': give latest, best, or one of 2, 5, 6")


def test_flipped_bits_of_arrays_are_noticed(two):
    """Orbax restores most flipped bits without an error; only our checksum notices them."""
    rng = np.random.default_rng(0)
    damaged = two.root / "damaged" / "5"
    path = two.data_file(5)
    original = path.read_bytes()
    for _ in range(6):
        data = bytearray(original)
        position = rng.integers(len(data))
        bit = rng.integers(8)
        data[position] ^= 1 << bit
        path.write_bytes(data)
        two.assert_newest()
        if damaged.exists():
            message = two.log[-1]
            assert f"{two.folder_of(5)}" in message
            assert f"it is moved to {damaged}" in message
            shutil.move(damaged, two.folder_of(5))
    assert len(two.log) > 3
    assert re.search("the checksum of (params|ema)", "\n".join(two.log))


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param("", halve, id="half of the data"),
        pytest.param("_METADATA", empty, id="empty metadata"),
        pytest.param("manifest.ocdbt", Path.unlink, id="a missing index"),
    ],
)
def test_damaged_checkpoints_are_replaced_by_the_previous_one(two, name, damage):
    named = [path for path in two.files(5) if path.name == name]
    path = named[0] if name else two.data_file(5)
    damage(path)
    two.assert_newest(3)
    (message,) = two.log
    assert f"{two.folder_of(5)}" in message
    assert "moved to" in message
    assert (two.root / "damaged" / "5").is_dir()
    assert not two.folder_of(5).exists()


def test_folders_without_a_good_checkpoint_are_refused(two):
    for number in (3, 5):
        os.truncate(two.data_file(number), 10)
    with pytest.raises(RunError, match=r"no checkpoint in \S+ is good \(tried 3, 5\)"):
        two.newest()
    assert len(two.log) == 2


def test_unfinished_checkpoints_are_ignored_and_named(two):
    half = two.root / "checkpoints" / "7.orbax-checkpoint-tmp"
    shutil.copytree(two.root / "checkpoints" / "5", half)
    two.assert_newest(5)
    assert two.log == [f"{half} was never finished and is ignored"]


def test_mismatches_list_every_path(two):
    line = two.template.params["line"]
    bias = line["bias"]
    kernel = line["kernel"]
    wrong = {
        "kernel": kernel.update(shape=(4,)),
        "bias": bias.update(dtype=jnp.bfloat16),
        "scale": bias,
    }
    template = two.template._replace(params={"line": wrong})
    message = raised(RunError, two.newest, template)
    assert "params/line/kernel is float32[1000], not float32[4]" in message
    assert "params/line/bias is float32[], not bfloat16[]" in message
    assert "params/line/scale is missing" in message
    assert two.log == []
    assert (two.root / "checkpoints" / "5").is_dir()


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_states_that_are_not_finite_are_refused(two, value):
    state = two.state(9)
    moments = state.opt_state[1][0].mu
    zeros = jnp.zeros(1000)
    moments["line"]["kernel"] = zeros.at[500].set(value)
    with two.open() as checkpoints:
        with pytest.raises(RunError, match=f"step 9 is not finite.* {two.root}/checkpoints/5"):
            checkpoints.save(9, state, None)
        assert checkpoints.steps() == [3, 5]


def test_failed_saves_name_the_last_good_checkpoint(two, monkeypatch):
    full = mock.Mock(side_effect=OSError(28, "No space left on device\nand a long story"))
    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    message = raised(RunError, two.save, 9)
    assert f"{two.folder_of(5)}; saving step 9 failed (No space left" in message


def failing(function, error: BaseException, times: float):
    """A function that raises an error in its first calls, and the list of its calls."""
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
def test_errors_of_reading_are_retried_and_are_not_damage(two, quick, monkeypatch, number):
    """More errors are in test_reading.py."""
    before = two.contents()
    reason = os.strerror(number)
    error = OSError(number, reason)
    restore, calls = failing(ocp.CheckpointManager.restore, error, math.inf)
    monkeypatch.setattr(ocp.CheckpointManager, "restore", restore)
    with pytest.raises(RunError, match=f"{two.folder_of(5)} .*{reason}") as caught:
        two.newest()
    is_transient = number != errno.EACCES
    assert isinstance(caught.value, StorageError) == is_transient
    assert not isinstance(caught.value, checkpoint.Damaged)
    assert "\n" not in str(caught.value)
    assert len(calls) == 4
    assert two.log == []
    assert not (two.root / "damaged").exists()
    assert two.contents() == before


def test_transient_errors_of_reading_are_retried(two, quick, monkeypatch):
    restore, calls = failing(ocp.CheckpointManager.restore, MemoryError(), 2)
    monkeypatch.setattr(ocp.CheckpointManager, "restore", restore)
    number, _ = two.newest()
    assert number == 5
    assert len(calls) == 3


def test_unreadable_files_are_not_damage(two, quick, monkeypatch):
    """Orbax may raise an error without a number, if one of the files cannot be read."""
    restore = mock.Mock(side_effect=ValueError("no structure"))
    monkeypatch.setattr(ocp.CheckpointManager, "restore", restore)
    os_error = OSError(errno.EIO, "I/O")
    error = storage.storage_error("reading", os_error)
    unreadable = mock.Mock(side_effect=error)
    with monkeypatch.context() as broken, pytest.raises(StorageError, match="Input/output error"):
        broken.setattr(files, "open_file", unreadable)
        two.newest()
    with pytest.raises(RunError, match=r"no checkpoint in \S+ is good"):
        two.newest()


def test_damaged_checkpoints_are_picked_last(folder):
    """Checkpoints without an evaluation are preferred to it."""
    rules = Retention(keep=3, metric="loss")
    folder.save(1, 2, 3, metrics={3: {"loss": 1.0}}, retention=rules)
    for path in folder.files(3):
        path.write_bytes(b"")
    with folder.open(rules) as checkpoints:
        assert checkpoints.pick("best") == 2
        folder.log.clear()


def test_the_best_is_kept_if_its_metrics_are_damaged(folder):
    """Unverified checkpoints are never deleted: a flipped bit must not make the best one the
    worst."""
    metrics = {1: {"loss": 839.0}, 2: {"loss": 2e7}}
    kept = folder.save(1, 2, metrics=metrics, retention=BEST)
    assert kept == [1, 2]
    (manifest,) = [path for path in folder.files(1) if path.name == MANIFEST_FILE]
    content = manifest.read_text()
    assert '"loss": 839.0' in content
    manifest.write_text(content.replace('"loss": 839.0', '"loss": 9e39'))
    with folder.open(BEST) as checkpoints:
        # before a restore, 1 and 2 are unverified
        checkpoints.save(3, folder.state(3), {"loss": 2.0e9})
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2, 3]
    with folder.open(BEST) as checkpoints:
        assert checkpoints.pick("best") == 2
        assert len(folder.log) == 1
        assert "checkpoints/1" in folder.log.pop()
        number, _ = checkpoints.restore_newest(folder.template)
        assert number == 3
        (message,) = folder.log
        assert f"moved to {folder.root}/damaged/1" in message
        checkpoints.save(4, folder.state(4), {"loss": 3.0e9})
        checkpoints.wait()
        assert checkpoints.steps() == [2, 4]


def test_states_may_be_evaluated_after_they_are_saved(folder):
    """It may be the best."""
    metrics = {1: {"loss": 2.0}}
    folder.save(1, 2, metrics=metrics, retention=BEST)
    lines = '{"step": 1, "eval": {"loss": 0.0}}\n{"step": 2, "eval": {"loss": 1.0}}\n'
    (folder.root / "metrics.jsonl").write_text(lines)
    with folder.open(BEST) as checkpoints:
        assert checkpoints.pick("best") == 2, "metrics in a checkpoint override the file"
        number, _ = checkpoints.restore_newest(folder.template)
        assert number == 2
        checkpoints.set_metrics(2, {"loss": 1.0})
        checkpoints.save(3, folder.state(3), {"loss": 1.5})
        checkpoints.save(4, folder.state(4), {"loss": 0.5})
        checkpoints.wait()
        assert checkpoints.steps() == [4]


def test_damaged_metrics_of_later_evaluations_are_named(folder):
    folder.save(1, retention=BEST)
    (folder.root / "metrics.jsonl").write_text('{"step": 1, "eval": {"loss": 2.0}}\n')
    with folder.open(BEST) as checkpoints:
        number, _ = checkpoints.restore_newest(folder.template)
        assert number == 1
        for number in (2, 3):
            metrics = {"loss": 1 / number}
            checkpoints.save(number, folder.state(number), metrics)
        checkpoints.wait()
        assert checkpoints.steps() == [3]
    (folder.root / "metrics.jsonl").write_text("[]\n")
    with folder.open(BEST) as checkpoints:
        checkpoints.save(4, folder.state(4), None)
        checkpoints.wait()
        assert "metrics.jsonl, line 1 is damaged" in raised(RunError, checkpoints.pick, "best")


@pytest.mark.parametrize(("step", "name"), [(5, 7), (3, 4)])
def test_renamed_checkpoints_are_refused(two, step, name):
    """An older one must not be the best either, since the run's own best would be deleted."""
    renamed = two.folder_of(name)
    two.folder_of(step).rename(renamed)
    message = raised(RunError, two.newest)
    assert message.startswith(f"{renamed} is the checkpoint of step {step}")


def test_checkpoints_of_another_run_are_refused(two):
    path = two.folder_of(5)
    message = raised(RunError, two.newest, run="mine")
    assert message.startswith(f"{path} is of another run () than its folder (mine)")
    assert two.log == []
    assert path.is_dir()


MALICIOUS = (
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


@pytest.mark.parametrize("name", [*MALICIOUS, "a" * 200 + ".txt"])
def test_malicious_names_are_refused(name):
    message = raised(RunError, assets.check_names, [name], "there")
    assert message.startswith("there has a file named")


def test_malicious_names_in_checkpoints_are_refused(two, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(assets, "check_names", lambda *_: None)
        two.save(8, files={"../x.json": b"pwned"})
    with (
        two.open(read_only=True) as checkpoints,
        pytest.raises(RunError, match="checkpoints/8 has a file named"),
    ):
        checkpoints.read_files(8)


def test_checkpoints_of_version_0_2_are_refused_and_kept(two):
    """It was one unnamed item of Orbax."""
    path = two.folder_of(5)
    shutil.rmtree(path)
    state = {"state": {"x": np.zeros(3)}}
    with contextlib.closing(ocp.CheckpointManager(path.parent)) as manager:
        manager.save(5, args=ocp.args.PyTreeSave(state))
        manager.wait_until_finished()
    before = sorted(path.rglob("*"))
    message = raised(RunError, two.newest)
    assert message.startswith(f"{path} ")
    assert "gmlp_flax 0.2.0" in message
    assert sorted(path.rglob("*")) == before
    assert two.log == []


def test_tensorstore_uses_the_limits():
    """Orbax 0.12.8 has no option for them, so its own context is changed."""
    checkpoint.limit_retries()
    for ocdbt in (False, True):
        context = tensorstore_utils.get_ts_context(use_ocdbt=ocdbt)
        assert context["gcs_request_retries"].to_json() == checkpoint.RETRIES
