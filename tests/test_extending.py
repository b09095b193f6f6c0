"""The examples of docs/extending.md, run unchanged: a user-defined block, task and optimizer."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded
from tests.training import tiny

PAGE = Path("docs/extending.md").read_text()
COMMANDS = re.findall(r"```bash\ngmlp (.*?)```", PAGE, re.DOTALL)
assert COMMANDS, "docs/extending.md shows no command"
BLOCK = "--config.model.block=my_package.fourier:FourierBlock"
SMALL = (
    "--config.steps=2",
    "--config.batch_size=4",
    "--config.model.layers=2",
    "--config.model.length=16",
    "--config.model.d_model=8",
    "--config.model.d_ffn=16",
    "--config.model.vocab_size=320",
    "--config.data.train=corpus.jsonl",
    "--config.data.heldout_share=0.2",
    "--config.data.cache=cache",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files of the page, each under the name that its first line gives."""
    root = tmp_path_factory.mktemp("outside")
    for name, code in re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(code)
    tiny.write_corpus(root / "corpus.jsonl")
    return root


@pytest.fixture(scope="module")
def trained(folder):
    """Runs the installed command, which finds packages in the current folder."""
    command = [
        Path(sys.executable).with_name("gmlp"),
        "train",
        "--config=my_config.py",
        "--workdir=run",
    ]
    done = subprocess.run([*command, *SMALL], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.smoke
def test_the_config_of_the_page_trains_its_block_and_its_task(trained):
    config = json.loads((trained / "run/config.json").read_text())
    assert config["task"] == "my_package.penalized:Penalized"
    assert config["penalty"] == {"embedding": 0.1}
    assert config["model"]["first_weight"] == 0.5
    assert "gate" not in config["model"]
    assert config["optimizer"]["name"] == "my_package.signs:sign_descent"
    assert json.loads((trained / "run/result.json").read_text())["step"] == 2


@pytest.mark.slow
def test_runs_of_user_defined_blocks_are_loaded_only_if_their_module_is_trusted(trained):
    """A run's config may be a stranger's; the config file is the user's own, so training goes
    on."""
    for command in ("predict", "evaluate"):
        refused = preloaded.gmlp(command, "--workdir=run", cwd=trained, input="a [MASK]\n")
        assert refused.returncode == 2, refused.stderr
        *_, message = refused.stderr.splitlines()
        assert "run/config.json: task is 'my_package.penalized:Penalized'" in message
        assert "--trust=my_package.penalized" in message
    trust = [
        "--trust=my_package.penalized",
        "--trust",
        "my_package.fourier",
        "--trust=my_package.signs",
    ]
    filled = preloaded.gmlp("predict", "--workdir=run", *trust, cwd=trained, input="a [MASK]\n")
    assert filled.returncode == 0, filled.stderr
    assert "[MASK] 1:" in filled.stdout, filled.stderr
    resumed = preloaded.gmlp("train", "--config=my_config.py", "--workdir=run", *SMALL, cwd=trained)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming" in resumed.stderr, resumed.stderr


@pytest.mark.slow
def test_the_task_of_the_page_learns_and_predicts(folder):
    """Waves: after 100 steps, nearly all held-out examples are classified correctly."""
    train = ("train", "--config=my_waves.py", "--workdir=waves")
    done = preloaded.gmlp(*train, "--config.eval.every=100", cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "waves/result.json").read_text())
    assert result["eval"]["examples"] == 64
    assert result["eval"]["accuracy"] > 0.9
    square = " ".join(["1 1 1 1 -1 -1 -1 -1"] * 2)
    predict = ("predict", "--workdir=waves", "--trust=my_package.waves")
    named = preloaded.gmlp(*predict, cwd=folder, input=square + "\n")
    assert named.returncode == 0, named.stderr
    assert named.stdout.split()[16] == "square"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_of_the_page_are_known(folder, command):
    """Up to the first thing that a check refuses, here the number of steps."""
    words = command.replace("\\\n", " ").split()
    done = preloaded.gmlp(*words, "--config.steps=0", cwd=folder)
    assert done.stderr.splitlines()[-1] == "error: config.steps is 0: expected at least 1"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.task=my_package.fourier:FourierBlock"], "expected a class that extends"),
        ([BLOCK, "--config.model.first_weight=0"], "expected above 0"),
    ],
)
def test_user_errors_are_one_line(folder, flags, message):
    done = preloaded.gmlp("train", "--config=quickstart_text", "--workdir=none", *flags, cwd=folder)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert done.returncode == 2, done.stderr
    assert len(errors) == 1, done.stderr
    assert message in errors[0], done.stderr
    assert not (folder / "none").exists()
