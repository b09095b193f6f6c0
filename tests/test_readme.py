"""The README's claims can be run: its commands name what exists, its table of sizes is the command's output."""

from __future__ import annotations

import glob
import importlib.util
import os
import re

import pytest

from gmlp_flax import config
from gmlp_flax.commands.main import COMMANDS

with open("README.md") as file:
    README = file.read()

# `gmlp X`, `python -m gmlp_flax X`, the modules that do the same, and the scripts that do.
CALLS = re.compile(r"(?<![\w./-])(?:gmlp|python -m gmlp_flax(?:\.\w+)*|python scripts/\w+\.py) [^`\n]*")


def command_file(call: str) -> str:
    """The file of the subcommand that a command line runs."""
    words = call.split()
    if words[0] == "gmlp":
        module = COMMANDS[words[1]][0]
    elif words[2:] and words[2] == "gmlp_flax":
        module = COMMANDS[words[3]][0]
    elif words[1] == "-m":
        module = words[2].removeprefix("gmlp_flax.")
    else:
        with open(words[1]) as script:
            module = COMMANDS[re.search(r'start\("([\w-]+)"', script.read())[1]][0]
    return f"gmlp_flax/commands/{module}.py"


@pytest.mark.smoke
def test_commands_name_what_exists():
    found = {os.path.basename(command_file(call)) for call in CALLS.findall(README)}
    assert {"train.py", "evaluate.py", "predict.py"} <= found
    for module in re.findall(r"python -m (\S+)", README):
        assert importlib.util.find_spec(module), module
    for path in re.findall(r"(?:\./|python )(scripts/\w+\.\w+)", README):
        assert os.path.exists(path), path
    for path in re.findall(r"--config=(configs/\w+\.py)", README):
        assert config.from_file(path)
    for key in re.findall(r"--config\.([\w.]+)=", README):
        if key != "a.b":
            config.check_name(key, "README")


@pytest.mark.parametrize("page", ["README.md", *sorted(glob.glob("docs/*.md"))])
def test_commands_have_the_flags_that_they_are_given(page):
    """Looks for each flag in its command's file and in cli.py, which defines shared flags; --config.KEY is above."""
    with open(page) as file, open("gmlp_flax/commands/cli.py") as shared:
        text, common = file.read().replace("\\\n", " "), shared.read()
    for call in CALLS.findall(text):
        with open(command_file(call)) as file:
            program = file.read() + common
        for flag in re.findall(r" --(?:no)?(\w+)(?![\w.])", call.partition(" -- ")[0]):
            assert re.search(rf'DEFINE_\w+\(\s*"{flag}"|"--{flag}(?:=[A-Z]+)?"', program), call


def test_sizes_are_what_the_command_prints(printed_sizes):
    for line in printed_sizes.splitlines():
        assert line[:55].rstrip() in README


def test_the_modules_example_runs():
    import jax.numpy as jnp

    example = re.search(r"```python\n(.*?)```", README, re.S)[1].replace("layers=12", "layers=1")
    names = {"x": jnp.ones((2, 100, 512))}
    exec(example, names)  # noqa: S102 - our own README
    assert names["y"].shape == (2, 100, 512)
