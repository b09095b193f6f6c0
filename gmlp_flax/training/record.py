"""The record of a run: whose folder it is, its config, and how both came about.

run.json is made once, when a run takes its first step: its `id` is in every checkpoint of the run. config.json is written
when a step is taken under it, and each change of it is a line of metrics.jsonl.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import secrets
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import assets, places
from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.checkpoints.names import (
    BEFORE,
    CHECKPOINTS,
    CONFIG_FILE,
    DAMAGED,
    ENVIRONMENT_FILE,
    LEASE_FILE,
    METRICS_FILE,
    RESULT_FILE,
    RUN_FILE,
)
from gmlp_flax.config import schema
from gmlp_flax.errors import RunError
from gmlp_flax.io import run_files
from gmlp_flax.io.lease import Lease
from gmlp_flax.processes import distributed
from gmlp_flax.training.environment import environment

SHOWN = 3  # keys that a message names


@contextlib.contextmanager
def held(workdir: str, restart: bool = False) -> Iterator[Record]:
    """The record of the run in a folder, which no other process writes to until the block ends.

    The folder is made if it does not exist, and deleted again if nothing was written to it.

    Args:
        workdir: the run folder.
        restart: puts the record that is there aside, and begins another one; back again if no step is taken.

    Raises:
        RunError: the folder cannot be written to, another process writes to it, or it holds a run that has lost its
            checkpoints.
    """
    with contextlib.ExitStack() as closing:
        problem, record = None, None
        try:
            lease = _enter(workdir, restart, closing) if distributed.is_first() else None
        except RunError as error:
            problem, lease = error, None
        if not distributed.everywhere(problem is None):
            raise problem or RunError(f"the first process cannot write to {workdir}: see its message")
        record = Record(workdir, lease)
        yield record


def _enter(workdir: str, restart: bool, closing: contextlib.ExitStack) -> Lease:
    places.check(workdir)
    try:
        missing = _missing(os.path.join(workdir, CHECKPOINTS))
        run_files.make_folder(workdir)
        probe = os.path.join(workdir, f".writable.{secrets.token_hex(4)}")
        run_files.write(probe, b"")
        run_files.remove(probe)
    except RunError as error:
        if run_files.is_remote(workdir):  # it says what helps
            raise type(error)(re.sub(r"/\.writable\.\w+", "", str(error))) from None
        raise type(error)(f"--workdir={workdir} cannot be written to ({error}): give another folder") from None
    lease = Lease(workdir)
    closing.callback(_remove_empty, missing, lease)
    closing.callback(lease.close)
    lease.take()
    if restart:
        _refuse_other_than_a_run(workdir)
        aside = _free_aside(workdir)
        closing.callback(_put_back, workdir, aside, lease)
        _put_aside(workdir, aside)
    _refuse_lost(workdir)
    return lease


def _missing(folder: str) -> list[str]:
    """A folder and those above it that do not exist, the deepest first; none in a bucket, which has no empty folders."""
    found = []
    while not run_files.is_remote(folder) and not run_files.exists(folder):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


def _remove_empty(folders: list[str], lease: Lease) -> None:
    with contextlib.suppress(RunError):
        for folder in folders if lease.is_own else ():
            run_files.remove_if_empty(folder)


def _free_aside(workdir: str) -> str:
    taken = (name.removeprefix(BEFORE) for name in run_files.names(workdir) if name.startswith(BEFORE))
    return os.path.join(workdir, f"{BEFORE}{1 + max((int(rest) for rest in taken if rest.isdecimal()), default=0)}")


def _held(workdir: str) -> list[str]:
    """The names in a run folder, without those of runs that were put aside."""
    return [name for name in run_files.names(workdir) if name != LEASE_FILE and not name.startswith(BEFORE)]


def _refuse_other_than_a_run(workdir: str) -> None:
    """Refuses to put aside what is no run, such as a folder of other runs, which may be written to."""
    held = _held(workdir)
    if held and not {RUN_FILE, CONFIG_FILE, CHECKPOINTS} & set(held):
        raise RunError(f"--restart: {workdir} holds no run, but {held[0]!r}: give the folder of the run to begin anew")


def _put_aside(workdir: str, aside: str) -> None:
    """Moves all of a run to a folder inside its own; first what says whose it is, for `_put_back` if this is cut short."""
    moved = sorted(_held(workdir), key=lambda name: name != RUN_FILE)
    for name in moved:
        run_files.move(os.path.join(workdir, name), os.path.join(aside, name))
    if moved:
        distributed.say(f"the run before is put aside in {aside}")


def _put_back(workdir: str, aside: str, lease: Lease) -> None:
    """After a restart that took no step, all is as before."""
    if lease.is_own and run_files.exists(aside) and not run_files.exists(os.path.join(workdir, RUN_FILE)):
        for name in sorted(run_files.names(aside), key=lambda name: name == RUN_FILE):
            _merge(os.path.join(aside, name), os.path.join(workdir, name))
        run_files.remove_if_empty(aside)
        distributed.say(f"no step was taken: the run before is back in {workdir}")


def _merge(path: str, place: str) -> None:
    """Moves a file or a folder, file by file into a folder that is there: of checkpoints, as the new run made it or as half of
    them were moved."""
    run_files.remove_if_empty(place)
    if not run_files.exists(place):
        run_files.move(path, place)
    elif not os.path.isfile(place):
        for name in run_files.names(path):
            _merge(os.path.join(path, name), os.path.join(place, name))
        run_files.remove_if_empty(path)


def _refuse_lost(workdir: str) -> None:
    """Refuses a folder whose run has got somewhere, and has no checkpoint to go on from."""
    if checkpoint_steps(workdir):
        if not run_files.exists(os.path.join(workdir, CONFIG_FILE)):
            raise RunError(
                f"{workdir} has checkpoints but no {CONFIG_FILE}: bring it back, or begin anew with --restart"
            )
        if not read_identity(workdir):
            raise RunError(
                f"{workdir} has checkpoints but no {RUN_FILE}, which says whose they are: bring it back, or begin anew with "
                "--restart"
            )
        return
    run, there = read_identity(workdir), set(run_files.names(workdir))
    lines = MetricsFile.read(os.path.join(workdir, METRICS_FILE))
    signs = {
        f"a {RESULT_FILE}": RESULT_FILE in there,
        f"checkpoints in {DAMAGED}/": bool(run_files.names(os.path.join(workdir, DAMAGED))),
        "had checkpoints": bool(run.get("saved")),
        f"a {METRICS_FILE} up to step {lines[-1]['step'] if lines else 0}": bool(lines) and not run,
        **{f"a file {name}": not run and name in there for name in (CONFIG_FILE, ENVIRONMENT_FILE)},
    }
    if found := [sign for sign, seen in signs.items() if seen]:
        what = " and ".join(found if found[0].startswith("had") else ["has " + found[0], *found[1:]])
        raise RunError(
            f"{workdir} {what}, but no checkpoint to go on from: bring back {CHECKPOINTS}/, or begin anew with --restart, "
            f"which keeps the old record in {BEFORE}1"
        )
    if lines:
        distributed.say(f"no checkpoint was finished before {workdir} was stopped: it begins again at step 0")


def checkpoint_steps(workdir: str) -> list[int]:
    """The steps of what looks like a checkpoint in a run folder, oldest first."""
    return sorted(int(name) for name in run_files.names(os.path.join(workdir, CHECKPOINTS)) if name.isdecimal())


def read_identity(workdir: str) -> dict[str, Any]:
    """What run.json says; nothing if there is none.

    Raises:
        RunError: it is damaged.
    """
    path = os.path.join(workdir, RUN_FILE)
    content = run_files.read(path)
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("id"), str) or not found["id"].isalnum():
        raise RunError(f"{path} is damaged: expected an object with the run's id; bring it back, or --restart the run")
    return found


class Record:
    """What a run folder says of its run; only the first process writes.

    Attributes:
        workdir: the run folder.
        id: of the run, the same on all processes; one that has taken no step gets a new one.
    """

    def __init__(self, workdir: str, lease: Lease | None = None):
        self.workdir, self._lease = workdir, lease
        self._identity = read_identity(workdir) if distributed.is_first() else {}
        own = self._identity.get("id") or secrets.token_hex(8)
        letters = np.frombuffer(own.encode(), np.uint8)
        self.id = multihost_utils.broadcast_one_to_all(letters).tobytes().decode() if jax.process_count() > 1 else own

    def check(self) -> None:
        """Raises RunError if another process has taken the folder. Whoever writes to it asks first."""
        if self._lease is not None:
            self._lease.check()

    def refuse_other_settings(self, config: ConfigDict) -> None:
        """Refuses a config that contradicts the steps that the run has already taken.

        Raises:
            RunError: names the keys.
            ConfigError: config.json is damaged.
        """
        if not checkpoint_steps(self.workdir):
            return
        changes, block = self._changes(config, {}), config.model.block
        found = {name: old for name, (old, _) in changes.items() if not schema.may_change(name, block)}
        if found:
            was = ", ".join(f"config.{name} was {old!r}" for name, old in list(found.items())[:SHOWN])
            more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
            raise RunError(
                f"{was}{more}: use another --workdir, or set it back; {self.workdir} has taken steps with the old value"
            )

    def _changes(self, config: ConfigDict, undone: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        """The keys in which the config differs from the run's, with both values; `undone` are of the run's later past."""
        path = os.path.join(self.workdir, CONFIG_FILE)
        if not run_files.exists(path):
            return {}
        before = config_lib.load(path)
        found, now = config_lib.differences(before, config), config_lib.flat(config)
        found |= {name: (old, now.get(name)) for name, old in undone.items()}
        return {name: (old, new) for name, (old, new) in found.items() if _plain(old) != _plain(new)}

    def notes(self, config: ConfigDict) -> list[str]:
        """The keys that a config changes, one per line for people."""
        return [
            f"config.{name} was {old!r} and is now {new!r}" for name, (old, new) in self._changes(config, {}).items()
        ]

    def take_step(self, config: ConfigDict, files: assets.Files, metrics: MetricsFile) -> None:
        """Writes down under which config the steps after `metrics.resume_step` are taken, the first of which is done.

        The line in metrics.jsonl comes first: a run that is killed after it finds it again, and writes config.json.
        """
        if not distributed.is_first():
            return
        self.check()
        if not self._identity:
            self._identity = {"id": self.id, "begun": datetime.datetime.now(datetime.UTC).isoformat(" ", "seconds")}
            self._write_json(RUN_FILE, self._identity)
        run_files.remove(os.path.join(self.workdir, RESULT_FILE))  # before config.json says that there is more to do
        write_files(self.workdir, files, replace=True)
        self._write_json(ENVIRONMENT_FILE, environment())
        metrics.begin()
        changed = {
            name: [_plain(old), _plain(new)] for name, (old, new) in self._changes(config, metrics.undone).items()
        }
        if changed:
            metrics.write({"step": metrics.resume_step, "changed": changed})
        run_files.write(os.path.join(self.workdir, CONFIG_FILE), config_lib.to_json(config).encode())

    def note_checkpoint(self) -> None:
        """Notes that the run has a finished checkpoint, so that it never begins again in silence."""
        if distributed.is_first() and not self._identity.get("saved"):
            self._identity["saved"] = True
            self._write_json(RUN_FILE, self._identity)

    def result(self) -> dict[str, Any] | None:
        """The content of result.json, if there is one.

        Raises:
            RunError: it is damaged.
        """
        return read_result(self.workdir)

    def write_result(self, result: dict[str, Any]) -> None:
        """Writes result.json."""
        if distributed.is_first():
            self.check()
            self._write_json(RESULT_FILE, result)

    def _write_json(self, name: str, value: Any) -> None:
        write_json(os.path.join(self.workdir, name), value)


def begin(workdir: str) -> str:
    """Makes the run.json of a run that is not trained here; returns its id."""
    own = secrets.token_hex(8)
    write_json(os.path.join(workdir, RUN_FILE), {"id": own, "saved": True})
    return own


def _plain(value: Any) -> Any:
    """A config's value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def write_files(workdir: str, files: assets.Files, replace: bool) -> None:
    """Writes files to a run folder, each completely or not at all. Without `replace`, existing files stay.

    Raises:
        RunError: the folder cannot be written to.
    """
    for name, content in files.items():
        path = os.path.join(workdir, name)
        if replace or not run_files.exists(path):
            run_files.write(path, content)


def write_json(path: str, value: Any) -> None:
    """Writes a JSON file completely or not at all.

    Raises:
        RunError: the folder cannot be written to.
    """
    run_files.write(path, (json.dumps(value, indent=2) + "\n").encode())
