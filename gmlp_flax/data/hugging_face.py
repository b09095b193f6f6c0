"""What Hugging Face's package datasets writes beside the rows of a data set (save_to_disk), and
what repositories on its hub have."""

import json
from collections.abc import Iterable, Sequence

from gmlp_flax.io import files, json_files, records
from gmlp_flax.io.files import File

SPLITS_FILE = "dataset_dict.json"  # each folder beside it is a split
INFO_FILE = "dataset_info.json"  # describes the files beside it

_METADATA = (INFO_FILE, "dataset_infos.json", "state.json", SPLITS_FILE)


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


def declared_classes(path: str) -> dict[str, tuple[str, ...]]:
    """Column -> names of its classes, as the dataset_info.json beside a file declares them; {}
    without one.

    Raises:
        DataError: the dataset_info.json holds no object of JSON.
    """
    folder, _, _ = path.rpartition("/")
    info = files.join(folder, INFO_FILE) if folder else INFO_FILE
    if not files.exists(info):
        return {}
    return records.feature_classes(json_files.read(info, dict).get("features"))


def write_info(path: str, column: str, classes: Sequence[str]) -> None:
    """Writes a dataset_info.json that declares the classes of a column."""
    feature = {"names": list(classes), "_type": "ClassLabel"}
    files.write(path, json.dumps({"features": {column: feature}}, indent=1).encode())
