"""Documents: plain strings read from text files, folders and JSON lines, and their held-out split."""

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from gmlp_flax.data.errors import DataError

SUFFIXES = tuple(kind + packing for kind in (".txt", ".jsonl") for packing in ("", ".gz", ".xz"))
_OPENERS = {".gz": gzip.open, ".xz": lzma.open}


def read_documents(path: str) -> Iterator[str]:
    """Yields the documents of a corpus, one string each, in an order that depends on file names alone.

    Args:
        path: a `.jsonl` file (one document a line, in its `text` field), any other text file (one document), or a
            folder, searched recursively for files ending in SUFFIXES. `.gz` and `.xz` are unpacked on the fly.

    Documents of white space only are left out. Files are opened while the iterator is consumed; that `path` exists
    and names readable files is checked at once.

    Raises:
        DataError: the path or its text is missing, is not UTF-8, is not JSON lines with a `text` field, or is a
            truncated archive; names the file and, where there is one, the line.
    """
    files = _corpus_files(str(path))
    return _documents(str(path), files)


def split_documents(documents: Iterable[str], heldout_share: float) -> tuple[list[str], list[str]]:
    """Splits documents into (train, heldout) by their content.

    A document is held out if its CRC-32 falls in the first `heldout_share` of the range, so equal documents fall on
    one side and neither order nor later additions move a document. A corpus of one document is cut at a line
    instead: its last `heldout_share` of characters is held out.

    Raises:
        DataError: `heldout_share` is not between 0 and 1, or one side would be empty.
    """
    if not 0 < heldout_share < 1:
        raise DataError(f"heldout_share={heldout_share} is not between 0 and 1; 0.05 holds out 5 % of the documents")
    documents = list(documents)
    if len(documents) == 1:
        train, heldout = _cut_at_line(documents[0], heldout_share)
    else:
        train, heldout = [], []
        for document in documents:
            # Lone surrogates are legal in JSON strings and not in UTF-8.
            checksum = zlib.crc32(document.encode("utf-8", "surrogatepass"))
            (heldout if checksum < heldout_share * 2**32 else train).append(document)
    for name, side in (("training", train), ("held-out", heldout)):
        if not side:
            raise DataError(
                f"{len(documents)} document(s) split with heldout_share={heldout_share} leave no {name} text; "
                "use another heldout_share, or more documents or lines"
            )
    return train, heldout


def _cut_at_line(document: str, heldout_share: float) -> tuple[list[str], list[str]]:
    """Cuts one document where the line begins that crosses (1 - heldout_share) of its characters."""
    cut = document.rfind("\n", 0, round(len(document) * (1 - heldout_share))) + 1
    train, heldout = ([part] if part.strip() else [] for part in (document[:cut], document[cut:]))
    return train, heldout


def _corpus_files(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        raise DataError(f"no text at {path!r}: expected a file or a folder; check the path")
    files = sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(path, followlinks=True)
        for name in names
        if name.lower().endswith(SUFFIXES) and not name.startswith(".")
    )
    if not files:
        raise DataError(f"folder {path!r} holds no readable text: expected files ending in {', '.join(SUFFIXES)}")
    return files


def _documents(path: str, files: list[str]) -> Iterator[str]:
    empty = True
    for file in files:
        for document in _file_documents(file):
            if document.strip():
                empty = False
                yield document
    if empty:
        raise DataError(f"{path!r} holds no text: {len(files)} file(s) read, all empty; give a corpus with text in it")


def _file_documents(file: str) -> Iterator[str]:
    stem, packing = os.path.splitext(file)
    lines = (stem if packing.lower() in _OPENERS else file).lower().endswith(".jsonl")
    try:
        with _OPENERS.get(packing.lower(), open)(file, "rb") as stream:
            yield from _json_lines(file, stream) if lines else [_decoded(file, stream.read())]
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{file}: truncated or not a {packing} archive ({error}); copy or download it again") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); check the file and its permissions") from error


def _json_lines(file: str, stream: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        line = _decoded(file, line, first_line=number)
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{file}, line {number}: not JSON ({error.msg}); expected one object a line") from error
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            found = f"fields {', '.join(map(repr, record))}" if isinstance(record, dict) else type(record).__name__
            raise DataError(f"{file}, line {number}: found {found}; expected an object with a string field 'text'")
        yield record["text"]


def _decoded(file: str, data: bytes, first_line: int = 1) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise DataError(
            f"{file}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); convert it, e.g. with iconv -t UTF-8"
        ) from error
