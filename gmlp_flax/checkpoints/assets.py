"""Files stored in a checkpoint with their SHA-256: the vocabulary, the names of the classes.

With another vocabulary, a checkpoint predicts nonsense without any error. So each checkpoint
contains the files with which it was trained, and a run with other files does not restore it.
"""

import hashlib
import re
from collections.abc import Iterable

import jax
import numpy as np

from gmlp_flax.checkpoints import FILES
from gmlp_flax.errors import RunError

Files = dict[str, bytes]
# data in one folder; no code
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.(model|json|txt)")


def check_names(names: Iterable[str], where: str) -> None:
    """Raises RunError, with `where` it is from, at a name that a checkpoint from elsewhere could
    use to write outside the run folder, or over its record."""
    for name in names:
        if not NAME.fullmatch(name) or name in FILES:
            raise RunError(
                f"{where} has a file named {name!r}, which is no .model, .json or .txt: do not use it"
            )


def pack(files: Files) -> dict[str, dict[str, np.ndarray]]:
    """Files by name to a tree of arrays: `data` uint8 [bytes] and `sha256` uint8 [32]."""
    parts = {
        name: {"data": content, "sha256": hashlib.sha256(content).digest()}
        for name, content in files.items()
    }
    return jax.tree.map(lambda part: np.frombuffer(part, np.uint8), parts)


def unpack(tree: dict[str, dict[str, np.ndarray]]) -> tuple[Files, list[str]]:
    """The inverse of `pack`, and the names of the files whose checksum differs."""
    files = {name: np.asarray(entry["data"]).tobytes() for name, entry in tree.items()}
    digests = {name: np.asarray(entry["sha256"]).tobytes() for name, entry in tree.items()}
    return files, [
        name for name, content in files.items() if hashlib.sha256(content).digest() != digests[name]
    ]


def require_same(saved: Files, own: Files, checkpoint: str) -> None:
    """Raises RunError, with the first file that differs, if a checkpoint was trained with others
    than the run has."""
    for name, content in own.items():
        if name in saved and saved[name] != content:
            then, now = (hashlib.sha256(file).hexdigest()[:12] for file in (saved[name], content))
            raise RunError(
                f"{checkpoint} was trained with another {name} (SHA-256 {then}, here {now}): give that one"
            )
