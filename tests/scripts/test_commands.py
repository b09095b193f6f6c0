"""The Python scripts are the subcommands of `gmlp` under their old names."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from gmlp_flax.commands.main import COMMANDS

SCRIPTS = sorted(pathlib.Path(__file__).parents[2].glob("scripts/*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_calls_the_command_that_it_names(path):
    text = path.read_text()
    name = re.match(r'"""The same as `gmlp ([a-z-]+)`."""\n', text)[1]
    assert name in COMMANDS and text.endswith(f'    start("{name}", sys.argv[1:])\n')
    assert len(text.splitlines()) == 8


def test_a_script_runs():
    path = next(path for path in SCRIPTS if path.stem == "sizes")
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "usage: gmlp sizes" in done.stdout
