"""Where checkpoints can lie, and what Orbax has to be told there."""

from __future__ import annotations

import os
import re

import orbax.checkpoint as ocp
from orbax.checkpoint._src.serialization import tensorstore_utils

from gmlp_flax.errors import RunError
from gmlp_flax.io import run_files

# Buckets that a mount shows as folders: a rename there copies every file, and is not atomic.
MOUNTED = ("fuse.gcsfuse", "fuse.s3fs", "fuse.mountpoint-s3", "fuse.goofys", "fuse.rclone", "fuse.blobfuse2")
MOUNTS = "/proc/mounts"
# TensorStore's own 32 attempts, with up to 32 s between them, would be a quarter of an hour of silence.
RETRIES = {"max_retries": 8, "initial_delay": "500ms", "max_delay": "16s"}


def check(folder: str) -> None:
    """Refuses a run folder in a store that Orbax cannot write checkpoints to.

    Raises:
        RunError: in one line.
    """
    scheme = folder.partition("://")[0]
    if run_files.is_remote(folder) and scheme != "gs":
        raise RunError(
            f"{folder}: Orbax writes checkpoints to disks and to gs://, not to {scheme}://; give a bucket of gs://, or the "
            "folder at which this bucket is mounted"
        )


def atomicity(folder: str) -> ocp.options.AtomicityOptions:
    """How Orbax marks a checkpoint as finished: on a disk by a rename, in a bucket by a last file, also in a mounted one,
    which Orbax takes for a disk (github.com/google/orbax/pull/3537)."""
    modes = ocp.options.AtomicityMode
    return ocp.options.AtomicityOptions(mode=modes.COMMIT_FILE if is_bucket(folder) else modes.ATOMIC_RENAME)


def is_bucket(folder: str) -> bool:
    """Whether a folder is in a bucket, by its address or by the type of its mount."""
    return run_files.is_remote(folder) or _mount_type(os.path.realpath(folder)) in MOUNTED + ("fuse",)


def _mount_type(path: str) -> str:
    """The type of the file system that a path is on; empty if this system does not tell."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split()[:3] for line in file if len(line.split()) > 2]
    except OSError:
        return ""
    found = ("", "")
    for device, place, kind in mounts:
        if (
            kind == "fuse" and f"fuse.{device}" in MOUNTED
        ):  # some say who they are in the other column, GKE's driver nowhere
            kind = f"fuse.{device}"
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place)  # a space is written as \040
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(found[0]):
            found = place, kind
    return found[1]


def limit_retries() -> None:
    """Makes TensorStore tell within about a minute that a bucket does not answer; Orbax has no option for it."""
    for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
        context["gcs_request_retries"] = RETRIES
