"""A text that ships with Python, and images that ship with this package: enough to run everything
offline."""

import importlib.resources
import re

import numpy as np

from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.images.examples import ArrayImages
from gmlp_flax.errors import DataError

# The language reference's chapters on names, imports, assignment, calls and comparisons: prose,
# about 10 % of all characters, and hardly repeated in other topics.
HELDOUT_TOPICS = ("assignment", "calls", "comparisons", "execmodel", "import")

# The file keeps the order of collection: 14 blocks of about 128 digits, one block per writer. The
# last 382 digits are three whole blocks, so training sees none of their writers.
HELDOUT_DIGITS = 382

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


def sentences(text: str) -> list[str]:
    """The sentences of a text, cut after . ! ? and at blank lines, with normalized white space."""
    result = []
    for part in _SENTENCE_END.split(text):
        sentence = _one_spaced(part)
        if sentence:
            result.append(sentence)
    return result


def _one_spaced(text: str) -> str:
    """A text with single spaces between words and no white space around them."""
    words = text.split()
    return " ".join(words)


def embedded_text(role: str) -> list[str]:
    """The Python manual, as CPython ships it in `pydoc_data.topics` (79 topics, 465 KB in 3.11).

    The topics in HELDOUT_TOPICS are held out. Topics quote each other, so the sentences of the
    held-out text are removed from the training text: the two have no sentence in common.

    Args:
        role: "train" or "heldout".

    Returns:
        One string per topic, ordered by the topics' names.

    Raises:
        DataError: this Python comes without the manual.
    """
    try:
        from pydoc_data.topics import topics  # Some distributions leave it out.
    except ImportError as error:
        raise DataError(
            "Python comes without its manual: install pydoc_data, or take --config=own_text"
        ) from error
    heldout = [topics[name] for name in HELDOUT_TOPICS if name in topics]
    if role == HELDOUT:
        return heldout
    unwanted: set[str] = set()
    for text in heldout:
        sentences_of_text = sentences(text)
        unwanted.update(sentences_of_text)
    train = []
    for name in sorted(topics):
        if name in HELDOUT_TOPICS:
            continue
        text = _remove(topics[name], unwanted)
        if text.strip():
            train.append(text)
    return train


def embedded_digits(role: str) -> Dataset:
    """Handwritten digits, 8x8 (UCI; E. Alpaydin and C. Kaynak, 1998): 1,415 to train on; the last
    382 are held out.

    Images are uint8 [8, 8, 1]. scikit-learn has the digits too, but it is a dependency of more than
    40 MB for 46 KB of data.

    Args:
        role: "train" or "heldout".
    """
    folder = importlib.resources.files("gmlp_flax.data")
    path = folder.joinpath("digits", "digits.npz")
    with path.open("rb") as file, np.load(file) as arrays:
        images = arrays["images"][..., None]
        labels = arrays["labels"].astype(np.int32)
    part = slice(-HELDOUT_DIGITS, None)
    if role == TRAIN:
        part = slice(None, -HELDOUT_DIGITS)
    return Dataset(
        path=f"digits/{role}",
        form="digits that come with gmlp_flax",
        examples=ArrayImages(images[part]),
        classes=tuple("0123456789"),
        labels=labels[part],
        stratified=True,
    )


def _remove(text: str, unwanted: set[str]) -> str:
    """The text without the sentences in `unwanted`; the white space between sentences stays."""
    kept = []
    parts = re.split(f"({_SENTENCE_END.pattern})", text)
    for number, part in enumerate(parts):
        is_space = number % 2 == 1  # after each sentence
        if is_space or _one_spaced(part) not in unwanted:
            kept.append(part)
    return "".join(kept)
