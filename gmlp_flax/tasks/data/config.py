"""What config.data says: which path holds the data of a role, "train" or "heldout", and how a data
set is split.

config.data.heldout names the held-out data. If it is empty, both roles share config.data.train: its
splits, or a share of its examples (see data.holdout). With config.data.search, another share of the
training data is held out.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

from ml_collections import ConfigDict

from gmlp_flax.data import splits
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.holdout import HELDOUT
from gmlp_flax.data.splits import Request
from gmlp_flax.errors import DataError, RunError, counted
from gmlp_flax.io import files
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.io.records import BadRecords

# The value of config.data.train that stands for data which need no download.
EMBEDDED = "embedded"

MOST_SEARCHED = 0.4  # of the training data that a search may hold out


def key_of(config: ConfigDict, role: str) -> str:
    """The key of config.data that names the data of a role."""
    has_heldout_path = config.data.heldout and not config.data.search
    if role == HELDOUT and has_heldout_path:
        return "heldout"
    return "train"


def share_of(config: ConfigDict) -> float:
    """The share of the training data that is held out; negative (see holdout) if settings are
    searched."""
    share = config.data.heldout_share
    if config.data.search:
        return -min(share, MOST_SEARCHED)
    return 0.0 if config.data.heldout else share


def path_of(config: ConfigDict, role: str, expected: str = "PATH") -> str:
    """The value of that key; raises DataError if it is not set, with an example of what is
    `expected`."""
    key = key_of(config, role)
    path = config.data[key]
    if not path:
        raise DataError(f"config.data.{key} is not set; give --config.data.{key}={expected}")
    return path


def open_split(
    config: ConfigDict,
    role: str,
    read: Callable[[str, bool], Splits],
    expected: str = "PATH",
    heldout_names: tuple[str, ...] = (splits.VALIDATION_SPLIT,),
) -> Dataset:
    """The data set of a role.

    Args:
        config: of the run.
        role: "train" or "heldout".
        read: reads the splits of a path; its second argument is whether all data are one, whatever
            splits their names mean.
        expected: what the key may be, for the error if it is not set.
        heldout_names: the splits that such data usually hold out.

    Raises:
        DataError: the key is not set, or as `read` and `splits.choose`, with the key in front.
    """
    data = config.data
    path = path_of(config, role, expected)
    request = Request(
        role=role,
        split=data.split,
        heldout_split="" if data.search else data.heldout_split,
        heldout_share=share_of(config),
    )
    key = key_of(config, role)
    with errors_name(f"data.{key}"):
        refuse_run(path)
        ignore_splits = data.split == splits.ALL and role_shares_split(config, role)
        splits_of_path = read(path, ignore_splits)
        return splits.choose(splits_of_path, request, heldout_names)


def refuse_run(path: str) -> None:
    """Raises DataError if the data are the folder of a run."""
    folder = files.user_path(path)
    run_file = files.join(folder, files.RUN_FILE)
    if files.exists(run_file):
        raise DataError(
            f"{path!r} is the folder of a run ({files.RUN_FILE} is in it): give a folder of data"
        )


def require_outside_data(workdir: str, config: ConfigDict) -> None:
    """Refuses a run folder that lies in a folder of the run's data, because its files would be read
    as data and classes.

    Args:
        workdir: the run folder, which need not exist.
        config: of the run.

    Raises:
        RunError: it lies in the data.
    """
    run = _real(workdir)
    for key in ("train", "heldout"):
        path = config.data[key]
        if path in ("", EMBEDDED):
            continue
        data_folder = _real(path).rstrip("/") + "/"
        if run.startswith(data_folder):
            raise RunError(
                f"the workdir {workdir} lies in the data, config.data.{key}={path}, and would be "
                "read as a part of them: give another --workdir"
            )


def _real(path: str) -> str:
    """A path by which two folders are compared: absolute, and without links if it is local."""
    if files.is_remote(path):
        return files.absolute(path)
    return os.path.realpath(path)


def with_skipped(dataset: Dataset, bad: BadRecords) -> Dataset:
    """A data set with a note on the bad records that were skipped as it was read, if any were."""
    if not bad.count:
        return dataset
    skipped = counted(bad.count, "bad record")
    first = bad.first[0]
    return dataset.with_notes(f"{skipped} skipped, the first: {first}")


def role_shares_split(config: ConfigDict, role: str) -> bool:
    """Whether config.data.split is about the data of a role: those of config.data.train."""
    return key_of(config, role) == "train"


@contextlib.contextmanager
def errors_name(key: str, other: str = "") -> Iterator[None]:
    """Names config.`key`, and config.`other` if given, in a DataError of the block that names no
    key."""
    try:
        yield
    except DataError as error:
        if str(error).startswith("config."):
            raise
        suffix = f" (config.{other})" if other else ""
        raise DataError(f"config.{key}: {error}{suffix}") from None


def warn(role: str, units: str, message: str) -> None:
    """Prints to standard error what was skipped or cut in the data of a role; `units` names its
    examples."""
    to_stderr(f"{role} {units}: {message}")
