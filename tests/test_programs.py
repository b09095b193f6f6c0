"""Compiled programs are kept between sessions."""

import zlib

import pytest

from tests import programs
from tests.programs import Programs

PROGRAM = zlib.compress(bytes(range(256)) * 99)
NAME = "jit_step-0123-cache"


@pytest.fixture
def first(tmp_path):
    """A session that compiled a program."""
    session = Programs(tmp_path)
    (session.folder / NAME).write_bytes(PROGRAM)
    return session


def test_the_next_session_has_the_kept_programs(first, tmp_path):
    first.keep()
    first.close()
    assert not first.folder.exists()
    second = Programs(tmp_path)
    assert second.folder != first.folder
    assert (second.folder / NAME).read_bytes() == PROGRAM


def test_sessions_at_the_same_time_keep_a_program_once(first, tmp_path):
    other = Programs(tmp_path)
    (other.folder / NAME).write_bytes(PROGRAM)
    first.keep()
    other.keep()
    assert [path.name for path in first.kept.iterdir()] == [NAME]


def test_incomplete_programs_are_not_kept(first):
    """A killed run leaves one."""
    (first.folder / "jit_half-0123-cache").write_bytes(PROGRAM[:-9])
    (first.folder / "jit_none-0123-cache").write_bytes(b"")
    (first.folder / "socket").write_bytes(b"")
    first.keep()
    assert [path.name for path in first.kept.iterdir()] == [NAME]


def test_too_many_programs_are_dropped(first, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "MOST", 0)
    first.keep()
    second = Programs(tmp_path)
    assert list(second.folder.iterdir()) == list(second.kept.iterdir()) == []
