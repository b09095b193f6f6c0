"""The description of a checkpoint: manifest.json, next to its state.

Orbax verifies neither arrays nor JSON. So the manifest has a checksum of each array and of each
file, and a SHA-256 of itself.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from gmlp_flax.checkpoints.assets import sha256

MANIFEST_FILE = "manifest.json"


class Leaf(NamedTuple):
    """An array of the state."""

    shape: list[int]
    dtype: str
    checksum: int  # see `pytree.checksum`


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint.

    Attributes:
        run: the id of its run.
        step: the step of its state.
        metrics: of an evaluation of its state; None without one.
        leaves: the arrays of its state, by path.
        files: the SHA-256 of each of its files, by name.
    """

    run: str
    step: int
    metrics: dict[str, float] | None
    leaves: dict[str, Leaf]
    files: dict[str, str]

    def shapes(self) -> dict:
        """The state, as a nested dict of `jax.ShapeDtypeStruct`."""
        flat = {}
        for path, leaf in self.leaves.items():
            shape = tuple(leaf.shape)
            dtype = np.dtype(leaf.dtype)
            flat[path] = jax.ShapeDtypeStruct(shape, dtype)
        return traverse_util.unflatten_dict(flat, sep="/")

    def to_json(self) -> dict[str, Any]:
        """A dict for JSON, with its SHA-256."""
        leaves = {path: leaf._asdict() for path, leaf in self.leaves.items()}
        content = {
            "run": self.run,
            "step": self.step,
            "metrics": self.metrics,
            "leaves": leaves,
            "files": self.files,
        }
        return {"sha256": _digest(content), "manifest": content}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Manifest":
        """The inverse of `to_json`. Raises ValueError if the SHA-256 differs; any exception if it
        is not a manifest."""
        content = value["manifest"]
        if value["sha256"] != _digest(content):
            raise ValueError(f"the checksum of {MANIFEST_FILE} differs")
        metrics = content["metrics"]
        if metrics is not None:
            metrics = {name: float(number) for name, number in metrics.items()}
        leaves = {path: _leaf(leaf) for path, leaf in content["leaves"].items()}
        files = {name: str(digest) for name, digest in content["files"].items()}
        return cls(
            run=str(content["run"]),
            step=int(content["step"]),
            metrics=metrics,
            leaves=leaves,
            files=files,
        )


def describe_leaves(tree: dict, checksums: dict[str, Any]) -> dict[str, Leaf]:
    """The arrays of a state, a nested dict, with their checksums by path."""
    flat: dict[str, Any] = traverse_util.flatten_dict(tree, sep="/")
    leaves = {}
    for path, array in flat.items():
        dtype = np.dtype(array.dtype)
        leaves[path] = Leaf(
            shape=list(array.shape),
            dtype=dtype.name,
            checksum=int(checksums[path]),
        )
    return leaves


def _leaf(value: Mapping[str, Any]) -> Leaf:
    dtype = np.dtype(value["dtype"])
    return Leaf(
        shape=[int(size) for size in value["shape"]],
        dtype=dtype.name,
        checksum=int(value["checksum"]),
    )


def _digest(content: Any) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode())
