"""scripts/docs.sh: its help, and a command that it does not have. tests/docs builds the site."""

from __future__ import annotations

import subprocess


def test_help_is_the_head_of_the_script():
    done = subprocess.run(["scripts/docs.sh", "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "scripts/docs.sh build" in done.stdout


def test_another_command_is_refused():
    done = subprocess.run(["scripts/docs.sh", "publish"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "docs: the command is 'publish'; expected build or serve\n"
