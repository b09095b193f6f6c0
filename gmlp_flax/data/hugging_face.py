"""The metadata files that Hugging Face's package datasets writes beside the rows of a data set
(save_to_disk), and that repositories on its hub have."""

import json
from collections.abc import Iterable, Sequence

from gmlp_flax.io import files, json_files, records
from gmlp_flax.io.files import File

SPLITS_FILE = "dataset_dict.json"  # each folder beside it is a split
INFO_FILE = "dataset_info.json"  # describes the files beside it

_METADATA = (INFO_FILE, "dataset_infos.json", "state.json", SPLITS_FILE)


def is_metadata(name: str) -> bool:
    """Whether a file, by its name, has no rows of its own: it describes rows or caches them."""
    _, _, base = name.rpartition("/")
    is_cache = base.startswith("cache-") and base.endswith(".arrow")
    return is_cache or base in _METADATA


def metadata(listing: Iterable[File]) -> list[File]:
    """The files that hold no rows (see `is_metadata`)."""
    without_rows = []
    for file in listing:
        if is_metadata(file.name):
            without_rows.append(file)
    return without_rows


def declares_splits(listing: Iterable[File]) -> bool:
    """Whether the folders of a data set are its splits."""
    return any(file.name == SPLITS_FILE for file in listing)


def declared_classes(path: str) -> dict[str, tuple[str, ...]]:
    """Column -> names of its classes, as the dataset_info.json beside a file declares them; {}
    without one.

    Raises:
        DataError: the dataset_info.json holds no object of JSON.
    """
    folder, _, _ = path.rpartition("/")
    info_path = INFO_FILE
    if folder:
        info_path = files.join(folder, INFO_FILE)
    if not files.exists(info_path):
        return {}
    info = json_files.read(info_path, dict)
    features = info.get("features")
    return records.feature_classes(features)


def write_info(path: str, column: str, classes: Sequence[str]) -> None:
    """Writes a dataset_info.json that declares the classes of a column."""
    names = list(classes)
    feature = {"names": names, "_type": "ClassLabel"}
    info = {"features": {column: feature}}
    text = json.dumps(info, indent=1)
    content = text.encode()
    files.write(path, content)
