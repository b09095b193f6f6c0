"""Compressed files: their suffixes, and their content as it is read; a missing or damaged end is an error."""

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

BUFFER = 1 << 20
ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)  # raised by what is damaged
_DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".xz": lambda raw: _Streams(raw, lzma.LZMADecompressor),
    ".bz2": lambda raw: _Streams(raw, bz2.BZ2Decompressor),
    ".zst": lambda raw: _zstandard(raw),
}
COMPRESSIONS = tuple(_DECOMPRESSORS)


def compression(path: str) -> str:
    """The suffix among COMPRESSIONS that `path` ends with, or ''."""
    return next((kind for kind in COMPRESSIONS if path.lower().endswith(kind)), "")


def suffix(path: str) -> str:
    """The suffix of `path` in small letters, without that of its compression: ".jsonl" of "A.JSONL.gz"; or ''."""
    return os.path.splitext(path.lower().removesuffix(compression(path)))[1]


def decompress(raw: BinaryIO, kind: str) -> BinaryIO:
    """The content of a compressed file, which cannot seek; reading it raises one of ERRORS if the file is damaged."""
    if not raw.read(1):
        raise EOFError("the file is empty")  # gzip accepts it as an empty archive
    raw.seek(0)
    return io.BufferedReader(_DECOMPRESSORS[kind](raw), BUFFER)


def _zstandard(raw: BinaryIO) -> Any:
    import pyarrow  # slow, and Python has no reader of its own before 3.14

    return pyarrow.CompressedInputStream(raw, "zstd")


class _Streams(io.RawIOBase):
    """The content of a file of one or more compressed streams, with zeros between them if any; `decompressor()` makes
    the decompressor of one. bz2.BZ2File and lzma.LZMAFile drop all that follows a good stream if it does not begin as
    another, damaged or not."""

    def __init__(self, raw: BinaryIO, decompressor: Callable[[], Any]):
        self._raw, self._decompressor, self._stream = raw, decompressor, decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase; raises EOFError if the last stream has no end."""
        while True:
            data = b""
            if self._stream.eof:
                data = self._stream.unused_data.lstrip(b"\0")
                while not data and (more := self._raw.read(BUFFER)):
                    data = more.lstrip(b"\0")
                if not data:
                    return 0
                self._stream = self._decompressor()
            elif self._stream.needs_input and not (data := self._raw.read(BUFFER)):
                raise EOFError("its end is missing")
            if content := self._stream.decompress(data, len(buffer)):
                buffer[: len(content)] = content
                return len(content)
