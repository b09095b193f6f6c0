"""Names of the classes of a model whose weights do not name them."""

import contextlib
import importlib
import importlib.resources
import json

from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.data.classes import CLASSES_FILE, NAMES_FILE

CLASSES = 1000  # of ImageNet-1k
# In tensorflow_datasets: the WordNet ids in the order of the labels.
_LABELS = "datasets/imagenet2012/labels.txt"


def class_files(count: int) -> Files:
    """The files that name the classes of a model: ImageNet-1k's if there are as many, by their
    WordNet ids and, if timm is installed, in words; else numbers."""
    if count != CLASSES:
        return {CLASSES_FILE: _listed([f"class {label}" for label in range(count)])}
    labels = importlib.resources.files("tensorflow_datasets").joinpath(_LABELS)
    synsets = labels.read_text().split()
    files = {CLASSES_FILE: _listed(synsets)}
    # Also a RuntimeError: of a torchvision that was built for another torch.
    with contextlib.suppress(ImportError, RuntimeError):
        imagenet = importlib.import_module("timm.data").ImageNetInfo()
        words = [imagenet.label_name_to_description(synset) for synset in synsets]
        files[NAMES_FILE] = _listed(words)
    return files


def _listed(names: list[str]) -> bytes:
    return json.dumps(names, indent=1).encode()
