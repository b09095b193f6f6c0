"""Executable Python programs, which stand for other commands in tests."""

import sys


def first_lines(options: str = "") -> str:
    """The lines with which such a program begins, without the last line break.

    They are a shell's script and a string of Python: the shell starts Python on the same file. A
    line `#!PYTHON` would not do, since the path of Python may have blanks.

    Args:
        options: of Python, such as -SE.
    """
    return f"#!/bin/sh\n'''exec' \"{sys.executable}\" {options} \"$0\" \"$@\"\n' '''"
