"""Two data sets that come with Python or with this package: enough to run everything without a download."""

import re
from pathlib import Path

import numpy as np

from gmlp_flax.data.errors import DataError
from gmlp_flax.data.image_sources import ImageArrays

# The language reference's chapters on names, imports, assignment, calls and comparisons: prose, about 10 % of the
# characters, and hardly any of it repeated in other topics.
HELDOUT_TOPICS = ("assignment", "calls", "comparisons", "execmodel", "import")

# The file keeps the order in which the digits were collected: its labels repeat in 14 blocks of about 128, a block a
# writer. The last 382 are three whole blocks, so held-out digits are by hands never seen in training.
HELDOUT_DIGITS = 382

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


def sentences(text: str) -> list[str]:
    """The text's sentences, white space normalised: cut after . ! ? and at blank lines."""
    return [" ".join(part.split()) for part in _SENTENCE_END.split(text) if part.strip()]


def embedded_text(split: str) -> list[str]:
    """Documents of the Python manual, as CPython ships it in `pydoc_data.topics` (79 topics, 465 KB in 3.11).

    The topics in HELDOUT_TOPICS are held out. Topics quote each other, so every sentence of the held-out text is
    removed from the training text: `sentences` of the two splits have none in common.

    Args:
        split: 'train' or 'heldout'.

    Returns:
        One string a topic, in the order of topic names.

    Raises:
        DataError: this Python comes without the manual, or with too few of the held-out topics.
    """
    _check_split(split)
    topics = _manual()
    present = [name for name in HELDOUT_TOPICS if name in topics]
    if 2 * len(present) < len(HELDOUT_TOPICS):
        raise DataError(
            f"pydoc_data.topics has {len(present)} of the {len(HELDOUT_TOPICS)} held-out topics "
            f"({', '.join(HELDOUT_TOPICS)}); use CPython 3.11 to 3.14, or your own text with configs/own_text.py"
        )
    heldout = [topics[name] for name in present]
    if split == "heldout":
        return heldout
    seen = {sentence for text in heldout for sentence in sentences(text)}
    train = (_without(topics[name], seen) for name in sorted(topics) if name not in present)
    return [text for text in train if text.strip()]


def embedded_digits(split: str) -> ImageArrays:
    """Handwritten digits, 8x8 (UCI; E. Alpaydin and C. Kaynak, 1998): 1,415 to train on and the last 382 held out.

    Items are {"image": uint8 [8, 8, 1], "label": int32}. They are shipped here because scikit-learn, which has them
    too, would be a dependency of more than 40 MB for 46 KB of data.

    Args:
        split: 'train' or 'heldout'.
    """
    _check_split(split)
    with np.load(Path(__file__).parent / "digits" / "digits.npz") as arrays:
        images, labels = arrays["images"][..., None], arrays["labels"].astype(np.int32)
    part = slice(None, -HELDOUT_DIGITS) if split == "train" else slice(-HELDOUT_DIGITS, None)
    return ImageArrays(images[part], labels[part], classes=tuple("0123456789"), name=f"digits/{split}")


def _check_split(split: str) -> None:
    if split not in ("train", "heldout"):
        raise DataError(f"split={split!r}; expected 'train' or 'heldout'")


def _manual() -> dict[str, str]:
    try:
        # Some distributions strip the module: import it only where it is asked for.
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataError(
            "this Python comes without its manual (pydoc_data.topics); install it (Debian: apt install "
            "libpython3-stdlib), or use your own text with configs/own_text.py"
        ) from error
    return topics


def _without(text: str, unwanted: set[str]) -> str:
    """The text less the sentences in `unwanted`; the white space between sentences stays."""
    kept, position = [], 0
    for gap in [*_SENTENCE_END.finditer(text), None]:
        end, resume = gap.span() if gap else (len(text), len(text))
        if " ".join(text[position:end].split()) not in unwanted:
            kept.append(text[position:end])
        kept.append(text[end:resume])
        position = resume
    return "".join(kept)
