"""What the README claims can be run: its commands name what exists, its table of sizes is what the script prints."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import subprocess
import sys

import pytest

from gmlp_flax import config

with open("README.md") as file:
    README = file.read()


@pytest.mark.smoke
def test_commands_name_what_exists():
    assert {"gmlp_flax.train", "gmlp_flax.evaluate", "gmlp_flax.predict"} <= set(re.findall(r"-m (\S+)", README))
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
    """By the text of each program, and of cli.py, where the flags of several are defined; --config.KEY is above."""
    with open(page) as file, open("gmlp_flax/cli.py") as shared:
        text, shared = file.read().replace("\\\n", " "), shared.read()
    for command in re.findall(r"python (?:-m gmlp_flax[\w.]+|scripts/[\w.]+) [^`\n]*", text):
        first, second = command.split()[1:3]
        with open(importlib.util.find_spec(second).origin if first == "-m" else first) as file:
            program = file.read() + shared
        for flag in re.findall(r" --(?:no)?(\w+)(?![\w.])", command.partition(" -- ")[0]):
            assert re.search(rf'DEFINE_\w+\(\s*"{flag}"|"--{flag}"', program), command


def test_sizes_are_what_the_script_prints():
    printed = subprocess.run([sys.executable, "scripts/sizes.py"], capture_output=True, text=True, check=True).stdout
    for line in printed.splitlines():
        assert line[:55].rstrip() in README


def test_the_modules_example_runs():
    import jax.numpy as jnp

    example = re.search(r"```python\n(.*?)```", README, re.S)[1].replace("layers=12", "layers=1")
    names = {"x": jnp.ones((2, 100, 512))}
    exec(example, names)  # noqa: S102 - our own README
    assert names["y"].shape == (2, 100, 512)
