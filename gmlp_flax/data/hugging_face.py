"""What Hugging Face's package datasets writes beside the rows of a data set (save_to_disk), and
what repositories on its hub have."""

from collections.abc import Iterable

from gmlp_flax.io.files import File

SPLITS_FILE = "dataset_dict.json"  # each folder beside it is a split

_METADATA = ("dataset_info.json", "dataset_infos.json", "state.json", SPLITS_FILE)


def is_metadata(name: str) -> bool:
    """Whether a file holds no rows, by its name: it describes them, or caches others."""
    _, _, base = name.rpartition("/")
    return base in _METADATA or (base.startswith("cache-") and base.endswith(".arrow"))


def metadata(found: Iterable[File]) -> list[File]:
    """The files that hold no rows, as in `is_metadata`."""
    return [file for file in found if is_metadata(file.name)]


def declares_splits(found: Iterable[File]) -> bool:
    """Whether the folders of a data set are its splits."""
    return any(file.name == SPLITS_FILE for file in found)
