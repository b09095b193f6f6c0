"""Files that belong to a run besides its weights: the vocabulary, the names of the classes.

With another vocabulary, a checkpoint predicts nonsense without any error. So each checkpoint
contains the files with which it was trained, as plain files, and a run with other files does not
restore it.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping

from gmlp_flax.checkpoints import FILES
from gmlp_flax.errors import RunError
from gmlp_flax.io import files as io_files

Files = Mapping[str, bytes]  # contents by name
# data in one folder; no code
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.(model|json|txt)")


def check_names(names: Iterable[str], where: str) -> None:
    """Raises RunError, which begins with `where`, at a name with which a checkpoint from elsewhere
    could read or write outside its folder, or overwrite a run's record."""
    for name in names:
        if not NAME.fullmatch(name) or name in (*FILES, io_files.COMMIT_MARK):
            raise RunError(
                f"{where} has a file named {name!r}: expected a plain name that ends in .model, "
                ".json or .txt, and none of a run's own files; do not use it"
            )


def sha256(content: bytes) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def require_same(saved: Files, files: Files, checkpoint: str) -> None:
    """Raises RunError, with the first file that differs, if a checkpoint was trained with other
    files than the run has. A file that only one of them has does not count as a difference."""
    for name, content in files.items():
        if name not in saved or saved[name] == content:
            continue
        then = sha256(saved[name])[:12]
        now = sha256(content)[:12]
        raise RunError(
            f"{checkpoint} was trained with another {name} (SHA-256 {then}, here {now}): "
            "give that one"
        )


def read(folder: str, names: Iterable[str]) -> Files:
    """Files of a folder, by name. Raises FileNotFoundError if one is missing, DataError if one has
    more than `io.files.SMALL` bytes or cannot be read."""
    content_of = {}
    for name in names:
        path = os.path.join(folder, name)
        if not io_files.exists(path):
            raise FileNotFoundError(path)
        content_of[name] = io_files.read_small(path, io_files.SMALL)
    return content_of
