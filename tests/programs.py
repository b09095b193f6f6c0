"""Compiled programs, which are kept between sessions of the tests in `.cache/test_programs`.

Each pytest worker has a folder of its own for the programs of a session, because JAX writes them in
place: a second writer could read half a file, and a killed run leaves one. A session begins with
links to the kept programs. Before each module it keeps those that it added and that are whole, and
links what the other workers have kept since. JAX names a program by its code, its options and the
release of jaxlib, so that a program that has changed is another one.
"""

import contextlib
import os
import platform
import shutil
import tempfile
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[1] / ".cache" / "test_programs"
SUFFIX = "-cache"  # of JAX's files
MOST = 30_000  # programs, of some 20 kB each


def is_whole(path: Path) -> bool:
    """Whether a file is all of a compressed program."""
    stream = zlib.decompressobj()
    try:
        stream.decompress(path.read_bytes())
    except zlib.error:
        return False
    return stream.eof


def new_programs(source: Path, target: Path) -> list[str]:
    """The names of the programs of one folder that the other does not have."""
    names = set(os.listdir(source)).difference(os.listdir(target))
    return [name for name in names if name.endswith(SUFFIX)]


def link(name: str, source: Path, target: Path) -> None:
    """Links a program of one folder into another."""
    with contextlib.suppress(OSError):  # another worker was faster, or there are no links here
        os.link(source / name, target / name)


class Programs:
    """The folder of one session. `close` deletes it.

    Args:
        root: the folder below which programs are kept, for each machine its own: they are made for
            its processor.
    """

    def __init__(self, root: Path = ROOT):
        self.kept = root / platform.node()
        self.kept.mkdir(parents=True, exist_ok=True)
        if len(os.listdir(self.kept)) > MOST:
            shutil.rmtree(self.kept, ignore_errors=True)
            self.kept.mkdir(exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="session-", dir=root))
        self.fetch()

    def fetch(self) -> None:
        """Links the programs that are kept, and that this session does not have."""
        for name in new_programs(self.kept, self.folder):
            link(name, self.kept, self.folder)

    def keep(self) -> None:
        """Keeps the new programs that are whole."""
        for name in new_programs(self.folder, self.kept):
            if is_whole(self.folder / name):
                link(name, self.folder, self.kept)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
