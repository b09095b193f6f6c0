"""The files of a run folder: every other file of this room reads and writes them through these few functions.

A path is local, or a file of a bucket (see buckets). A bucket has no folders to make, and its client tries
again by itself.

An error of a local disk is tried again a few times. Then it is raised in one line: as `StorageError` if it may pass, such as an
I/O error, a stale handle or too many open files; as `RunError` if the user has to act, such as on permissions.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

from gmlp_flax.errors import RunError, StorageError
from gmlp_flax.io import buckets
from gmlp_flax.io.buckets import is_remote

T = TypeVar("T")
PAUSES = (0.1, 0.5, 2.0)  # seconds before each further attempt
ABSENT = (FileNotFoundError, NotADirectoryError)
MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)  # a file is gone, or something else is in its place
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FOR_THE_USER = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)
AT_ONCE = (*FULL, errno.ENAMETOOLONG)  # no use to try again


def absolute(path: str) -> str:
    """The path of a run folder, or of a folder of runs, that does not depend on the current folder.

    Raises:
        RunError: TensorStore could not write to a path of such a name.
    """
    if re.search("[\x00-\x1f\x7f\ud800-\udfff]", path):  # Python keeps a byte that is no UTF-8 as a surrogate
        raise RunError(f"{path!r} cannot name a run folder: expected UTF-8 without control characters")
    return path.rstrip("/") if is_remote(path) else os.path.abspath(path)


def patiently(action: Callable[[], T], doing: str) -> T:
    """Calls `action` until storage lets it.

    Args:
        action: may be called again after an OSError.
        doing: begins the message, as in "reading PATH".

    Raises:
        FileNotFoundError, NotADirectoryError, FileExistsError: at once.
        RunError, StorageError: an error that stays.
    """
    for pause in (*PAUSES, None):
        try:
            return action()
        except (*ABSENT, FileExistsError):
            raise
        except (OSError, MemoryError) as error:
            if pause is None or number_of(error) in AT_ONCE:
                raise failure(doing, error) from error
            time.sleep(pause)
    raise AssertionError("unreachable")


def failure(doing: str, error: BaseException) -> RunError:
    """The error to raise for one of storage, with what helps against it."""
    if isinstance(error, RunError):  # of a bucket
        return error
    number = number_of(error)
    reason = os.strerror(number) if number else str(error).partition("\n")[0][:200] or type(error).__name__
    if number in FULL:
        return RunError(f"{doing} failed ({reason}): free space and run the same command again")
    if number == errno.ENAMETOOLONG:
        return RunError(f"{doing} failed ({reason}): give a shorter path")
    if number in FOR_THE_USER:
        return RunError(f"{doing} failed ({reason}): check it and its permissions, and run the same command again")
    return StorageError(f"{doing} failed ({reason}): nothing was moved or deleted; run the same command again")


def number_of(error: BaseException) -> int | None:
    """The system's number of an error; TensorStore writes it into its message."""
    told = re.search(r"(?:\[OS error |os_error_code=')(\d+)", str(error))
    number = getattr(error, "errno", None)
    if isinstance(number, int) or told:
        return number if isinstance(number, int) else int(told[1]) if told else None
    return next((full for full in FULL if os.strerror(full) in str(error)), None)  # some messages have only the words


def read(path: str) -> bytes | None:
    """A file's content; None if there is no such file."""
    try:
        return buckets.read(path) if is_remote(path) else patiently(lambda: _read(path), f"reading {path}")
    except ABSENT:
        return None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def read_all(folder: str) -> None:
    """Reads every byte of every file below a folder, and raises the first error of storage, but not if something is
    missing."""
    if is_remote(folder):
        buckets.read_all(folder)
        return

    def refuse(error: OSError) -> None:
        if error.errno not in MISSING:
            raise error

    for path, _, files in os.walk(folder, onerror=refuse):
        for name in files:
            try:
                with open(os.path.join(path, name), "rb", buffering=0) as file:
                    while file.read(1 << 22):
                        pass
            except OSError as error:
                refuse(error)


def write(path: str, content: bytes) -> None:
    """Writes a file completely or not at all; makes its folder if need be."""
    if is_remote(path):
        buckets.write(path, content)
        return
    try:
        patiently(lambda: _write(path, content), f"writing {path}")
    except (*ABSENT, FileExistsError) as error:  # something else has the name of a folder above
        raise RunError(f"writing {path} failed ({error.strerror}): give another folder") from None


def _write(path: str, content: bytes) -> None:
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave the new name with nothing in it
        os.replace(temporary, path)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def create(path: str, content: bytes) -> bool:
    """Writes a file unless there is one: of many that try at once, one succeeds. Returns whether this one did."""
    if is_remote(path):
        return buckets.create(path, content)

    def attempt() -> None:
        with open(path, "xb") as file:
            try:
                file.write(content)
                file.flush()
            except OSError:
                os.unlink(path)
                raise

    try:
        patiently(attempt, f"writing {path}")
    except FileExistsError:
        return False
    except ABSENT as error:  # another process has removed the folder that both had made
        raise StorageError(f"writing {path} failed ({error.strerror}): run the same command again") from None
    return True


def replace(path: str, old: bytes, new: bytes) -> bool:
    """Writes a file that has the content `old`, and returns whether it did.

    On a bucket nobody can write in between. On a disk one may: there a lock decides (see lease).
    """
    if is_remote(path):
        return buckets.replace(path, old, new)
    if read(path) != old:
        return False
    write(path, new)
    return True


class Staged:
    """A folder for libraries that write to disks alone: the folder itself, or a temporary one for a folder in a bucket.

    Attributes:
        path: where to write.
    """

    def __init__(self, folder: str):
        self._folder = folder
        self.path = tempfile.mkdtemp(prefix="gmlp_flax_") if is_remote(folder) else folder

    def close(self) -> None:
        """Moves what was written to the bucket."""
        if self.path == self._folder:
            return
        for inside, _, files in os.walk(self.path):
            for name in files:
                source = os.path.join(inside, name)
                buckets.upload(source, f"{self._folder}/{os.path.relpath(source, self.path)}")
        shutil.rmtree(self.path)


def names(folder: str) -> list[str]:
    """What is in a folder, sorted; nothing if there is no such folder."""
    if is_remote(folder):
        return buckets.names(folder)
    try:
        return sorted(patiently(lambda: os.listdir(folder), f"reading {folder}"))
    except ABSENT:
        return []


def matching(pattern: str) -> list[str]:
    """The paths that a glob pattern matches, sorted; ~ is the home folder."""
    return buckets.matching(pattern) if is_remote(pattern) else sorted(glob.glob(os.path.expanduser(pattern)))


def exists(path: str) -> bool:
    """Whether there is a file or a folder; unlike os.path.exists it does not take an error for a no."""
    if is_remote(path):
        return buckets.exists(path)
    try:
        patiently(lambda: os.stat(path), f"reading {path}")
    except ABSENT:
        return False
    return True


def age(path: str) -> float | None:
    """Seconds since a file was written to; None if there is no such file."""
    try:
        if is_remote(path):
            return buckets.age(path)
        return time.time() - patiently(lambda: os.stat(path), f"reading {path}").st_mtime
    except ABSENT:
        return None


def remove(path: str) -> None:
    """Deletes a file, if there is one."""
    try:
        if is_remote(path):
            buckets.remove(path)
        else:
            patiently(lambda: os.unlink(path), f"deleting {path}")
    except ABSENT:
        return


def remove_all(path: str) -> None:
    """Deletes a file, or a folder with all that is in it; nothing if it is not there."""
    if is_remote(path):
        buckets.remove_all(path)
    elif os.path.isdir(path):
        patiently(lambda: shutil.rmtree(path), f"deleting {path}")
    else:
        remove(path)


def move(path: str, target: str) -> str:
    """Moves a file or a folder to `target`, or beside it to TARGET.1, TARGET.2, ... if that is taken; returns where."""
    place, number = target, 0
    while exists(place):
        number += 1
        place = f"{target}.{number}"
    if is_remote(path):
        buckets.move(path, place)
    else:
        make_folder(os.path.dirname(place))
        if not patiently(lambda: _rename(path, place), f"moving {path} to {place}"):
            patiently(lambda: _copy(path, place), f"copying {path} to {place}")
            _empty(path)
    return place


def _rename(path: str, place: str) -> bool:
    """Returns whether it could: not to another device, as where a folder of a run is mounted."""
    try:
        os.rename(path, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _copy(path: str, place: str) -> None:
    """Copies a file or a folder, completely or not at all."""
    part = f"{place}.part"
    remove_all(part)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.copytree(path, part, symlinks=True)
    else:
        shutil.copy2(path, part, follow_symlinks=False)
    os.sync()  # before the source is deleted
    os.rename(part, place)


def _empty(path: str) -> None:
    """Deletes a file or a folder, of a mounted folder what is in it."""
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            remove_all(os.path.join(path, name))
        remove_if_empty(path)
    else:
        remove(path)


def make_folder(folder: str) -> None:
    """Makes a folder and those above it, unless they exist."""
    if is_remote(folder):
        return
    try:
        patiently(lambda: os.makedirs(folder, exist_ok=True), f"making {folder}")
    except (*ABSENT, FileExistsError) as error:
        raise RunError(f"making {folder} failed ({error.strerror}): give another folder") from None


def remove_if_empty(folder: str) -> None:
    """Deletes a folder in which there is nothing; a file, what is not there, or where something is mounted stays as it is."""
    if not is_remote(folder) and os.path.isdir(folder) and not names(folder) and not os.path.ismount(folder):
        patiently(lambda: os.rmdir(folder), f"deleting {folder}")
