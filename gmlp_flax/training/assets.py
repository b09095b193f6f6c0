"""Files that a checkpoint carries beside its parameters, each with its SHA-256: the vocabulary, the names of classes.

A checkpoint whose parameters meet another vocabulary predicts nonsense without a word. So each one holds the file
that it was trained with, and is refused beside another.
"""

from __future__ import annotations

import hashlib

import numpy as np

from gmlp_flax.training.errors import RunError

Files = dict[str, bytes]


def pack(files: Files) -> dict[str, dict[str, np.ndarray]]:
    """Files by name to a tree of arrays: `data` uint8 [bytes] and `sha256` uint8 [32]."""
    return {
        name: {
            "data": np.frombuffer(content, np.uint8),
            "sha256": np.frombuffer(hashlib.sha256(content).digest(), np.uint8),
        }
        for name, content in files.items()
    }


def unpack(tree: dict[str, dict[str, np.ndarray]]) -> tuple[Files, list[str]]:
    """The inverse of `pack`, and the names of those files whose content is not what their checksum says."""
    files = {name: np.asarray(entry["data"]).tobytes() for name, entry in tree.items()}
    sums = {name: np.asarray(entry["sha256"]).tobytes() for name, entry in tree.items()}
    return files, [name for name, content in files.items() if hashlib.sha256(content).digest() != sums[name]]


def require_same(saved: Files, own: Files, checkpoint: str) -> None:
    """Refuses a checkpoint that was trained with other files than the run's.

    Raises:
        RunError: naming the first that differs, and both checksums.
    """
    for name, content in own.items():
        if name in saved and saved[name] != content:
            then, now = (hashlib.sha256(file).hexdigest()[:12] for file in (saved[name], content))
            raise RunError(
                f"the checkpoint {checkpoint} was trained with another {name} (SHA-256 {then}...) than this run has "
                f"({now}...): give the one it was trained with, or start in a new folder"
            )
