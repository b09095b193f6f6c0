"""The folder of a run, local or in a bucket: which run owns it, who may write to it, and its files.

run.json is made once, when a run takes its first step. Every checkpoint of the run has its `id`.
"""

import contextlib
import datetime
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from gmlp_flax.checkpoints import (
    BEFORE,
    CHECKPOINTS,
    CONFIG_FILE,
    DAMAGED,
    ENVIRONMENT_FILE,
    FIGURES,
    LEASE_FILE,
    METRICS_FILE,
    RESULT_FILE,
    RUN_FILE,
    assets,
)
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.checkpoints.reading import on_all_processes
from gmlp_flax.errors import RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.io import json_files
from gmlp_flax.io.locks import Lease
from gmlp_flax.processes import distributed


class RunFolder:
    """The folder of a run. Only the first process writes to it.

    Attributes:
        path: the path of the folder.
        id: the id of the run, the same on all processes; a run that has taken no step gets a new
            one.
        data: what run.json will record about the data of the next steps.
    """

    def __init__(self, path: str, lease: Lease | None = None):
        self.path = path
        self._lease = lease
        self.data: Any = {}
        self._identity = read_identity(path) if distributed.is_first() else {}
        self.id = self._identity.get("id") or secrets.token_hex(8)
        if jax.process_count() > 1:
            self.id = _of_first_process(self.id)

    def check(self) -> None:
        """Raises RunError if another process has taken the folder; call it before each write."""
        if self._lease is not None:
            self._lease.check()

    def begin_steps(self, files: assets.Files) -> None:
        """Writes the identity of the run, which takes a step now, and the files that its model
        needs. Deletes a result of earlier steps."""
        self.check()
        if not self._identity:
            now = datetime.datetime.now(datetime.UTC)
            self._identity = {"id": self.id, "begun": now.isoformat(" ", "seconds")}
        self._identity["data"] = self.data
        identity_path = os.path.join(self.path, RUN_FILE)
        json_files.write(identity_path, self._identity)
        # before config.json asks for more steps
        result_path = os.path.join(self.path, RESULT_FILE)
        io_files.remove(result_path)
        write_files(self.path, files)

    def note_checkpoint(self) -> None:
        """Notes that the run has a finished checkpoint, so that it never silently starts over."""
        if not distributed.is_first() or self._identity.get("saved"):
            return
        self._identity["saved"] = True
        path = os.path.join(self.path, RUN_FILE)
        json_files.write(path, self._identity)

    def write_result(self, result: dict[str, Any]) -> None:
        """Writes result.json."""
        if not distributed.is_first():
            return
        self.check()
        path = os.path.join(self.path, RESULT_FILE)
        json_files.write(path, result)


def _of_first_process(text: str) -> str:
    """The text of the first process, on all processes; each one's has the same length."""
    letters = np.frombuffer(text.encode(), np.uint8)
    letters = multihost_utils.broadcast_one_to_all(letters)
    return letters.tobytes().decode()


@contextlib.contextmanager
def hold(path: str, restart: bool = False) -> Iterator[RunFolder]:
    """The folder of a run, which no other process writes to until the block ends.

    The folder is made if it does not exist, and deleted again if nothing was written to it. With
    `restart`, an existing run is moved away.

    Raises:
        RunError: the folder cannot be written to, another process writes to it, or it holds a run
            that has lost its checkpoints.
    """
    with contextlib.ExitStack() as closing:

        def take() -> Lease | None:
            if not distributed.is_first():
                return None
            return _take(path, restart, closing)

        lease = on_all_processes(path, take)
        yield RunFolder(path, lease)


def _take(path: str, restart: bool, closing: contextlib.ExitStack) -> Lease:
    """Takes a folder for this process until `closing` is closed."""
    scheme, _, _ = path.partition("://")
    if io_files.is_remote(path) and scheme != "gs":
        raise RunError(
            f"{path}: Orbax writes checkpoints to disks and to gs://, not to {scheme}://; "
            "give one of these"
        )
    _make_folder(path, closing)
    lease = Lease(path)
    closing.callback(lease.close)
    lease.take()
    _remove_unfinished(path)
    if restart:
        _move_away(path, _free_name(path))
    _refuse_lost(path)
    return lease


def _make_folder(path: str, closing: contextlib.ExitStack) -> None:
    """Makes a folder and those above it; `closing` deletes the new ones if they are still empty."""

    def remove_if_empty(folder: Path) -> None:
        with contextlib.suppress(OSError):
            folder.rmdir()

    if not io_files.is_remote(path):
        checkpoints = Path(path, CHECKPOINTS)
        for folder in reversed([checkpoints, *checkpoints.parents]):  # the deepest goes first
            if not os.path.exists(folder):
                closing.callback(remove_if_empty, folder)
    io_files.make_folder(path)


def _remove_unfinished(path: str) -> None:
    """Deletes the files that a killed write left."""
    if io_files.is_remote(path):
        return
    for pattern in (".*.json*.????????.tmp", f"{FIGURES}/.*.????????.tmp"):
        for file in Path(path).glob(pattern):
            io_files.remove(str(file))


def _free_name(path: str) -> str:
    """The folder that the run in a folder is moved to: before-1, or the next number."""
    highest = 0
    for name in io_files.listdir(path):
        number = name.removeprefix(BEFORE)
        if name.startswith(BEFORE) and number.isdecimal():
            highest = max(highest, int(number))
    return os.path.join(path, f"{BEFORE}{highest + 1}")


def _move_away(path: str, target: str) -> None:
    """Moves all files of a run to a folder inside its own; run.json goes last, as it records that
    there were checkpoints: if the move is interrupted, the run is not resumed without them. Raises
    RunError if the folder holds something other than a run, such as other runs."""
    names = []
    for name in io_files.listdir(path):
        if name != LEASE_FILE and not name.startswith(BEFORE):
            names.append(name)
    if not names:
        return
    if {RUN_FILE, CONFIG_FILE, CHECKPOINTS}.isdisjoint(names):
        raise RunError(
            f"--restart: {path} holds no run, but {names[0]!r}: "
            "give the folder of the run that is to start over"
        )
    names.sort(key=lambda name: name == RUN_FILE)
    for name in names:
        source = os.path.join(path, name)
        io_files.move(source, os.path.join(target, name))
    distributed.say(f"the previous run is moved to {target}")


def _refuse_lost(path: str) -> None:
    """Raises RunError if the run of a folder has taken steps but has no checkpoint to resume
    from."""
    identity = read_identity(path)
    names = io_files.listdir(path)
    if checkpoint_steps(path):
        for name in (CONFIG_FILE, RUN_FILE):
            if name not in names:
                raise RunError(
                    f"{path} has checkpoints but no {name}: restore it, "
                    "or start over with --restart"
                )
        return
    traces = [RESULT_FILE, DAMAGED]
    if not identity:
        traces = [CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE, *traces]
    signs = [name for name in traces if name in names]
    if identity.get("saved"):
        signs.append(f"a {RUN_FILE} that says that there were checkpoints")
    if signs:
        raise RunError(
            f"{path} has {' and '.join(signs)}, but no checkpoint to resume from: "
            "restore it, or start over with --restart"
        )
    if MetricsFile.read(os.path.join(path, METRICS_FILE)):
        distributed.say(
            f"no checkpoint was finished before {path} was stopped: it starts again at step 0"
        )


def checkpoint_steps(path: str) -> list[int]:
    """The steps of what looks like a checkpoint in a run folder, oldest first."""
    folder = os.path.join(path, CHECKPOINTS)
    steps = []
    for name in io_files.listdir(folder):
        if name.isdecimal():
            steps.append(int(name))
    return sorted(steps)


def read_identity(path: str) -> dict[str, Any]:
    """The content of a folder's run.json; {} if there is none. Raises RunError if it is damaged."""
    file = os.path.join(path, RUN_FILE)
    content = io_files.read(file)
    if content is None:
        return {}
    identity = json_files.parse_object(content)
    if not isinstance(identity.get("id"), str) or not identity["id"].isalnum():
        raise RunError(
            f"{file} is damaged: expected an object with the run's id; restore it, or start the run "
            "over with --restart"
        )
    return identity


def write_files(path: str, files: assets.Files) -> None:
    """Writes files to a folder, each completely or not at all. Raises RunError if it cannot be
    written to."""
    for name, content in files.items():
        target = os.path.join(path, name)
        io_files.write(target, content)
