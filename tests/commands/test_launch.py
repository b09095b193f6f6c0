"""The command line of `gmlp launch`, and of sweeps on engines: the arguments of training, and one
line for each error."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from gmlp_flax.checkpoints.metrics_file import RESULT_FILE
from gmlp_flax.launching.engines import ENGINES
from tests import preloaded
from tests.launching import golden

TEXT = "--config=quickstart_text"
SKY = ("--on=skypilot", "--topology=gpu:h100x1", "--mount=/tmp", "--dry_run")
SLURM = ("--on=slurm", "--topology=gpu:h100x8", "--dry_run")


def launched(*arguments: str) -> list[list[str]]:
    """Training's arguments in each task file that `gmlp ... --on=skypilot --dry_run` prints."""
    done = preloaded.gmlp(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    _, *texts = done.stdout.split("name: ")
    trained = []
    for text in texts:
        task = yaml.safe_load(f"name: {text}")
        trained.append(shlex.split(task["run"])[6:-1])
    return trained


@pytest.mark.parametrize("name", golden.CALLS)
def test_engine_files_match_the_golden_files(name):
    """Run python -m tests.launching.golden if a difference is intended."""
    done = preloaded.gmlp(*golden.call(name))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert golden.settled(done.stdout) == golden.expected(name)


def test_arguments_reach_training_unchanged():
    """Also with a value as a separate argument. The launcher's flags do not reach it."""
    train = ["--workdir", "/tmp/x", "--config.steps", "5", "--config.data.cache=a = b"]
    train += ["--config.log.tensorboard", "--noconfig.log.tensorboard"]
    after = ["--verbosity=1", "--config.seed=3", "--trust=json", "--trust", "csv"]
    own = [
        "--name",
        "my-run",
        "--nospot",
        "-on=skypilot",
        "--topology",
        "gpu:h100x1",
        "--mount=/tmp",
        "--dry_run",
    ]
    [words] = launched("launch", TEXT, *train, *own, *after)
    assert words == [TEXT, *train, *after]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workdir=x", TEXT), "--on is missing: see gmlp launch --help"),
        (("--on=slurm", "--workdir=x"), "--config is missing"),
        (("--on=slrum", TEXT, "--workdir=x"), "did you mean 'slurm'?"),
        ((*SLURM, TEXT, "--workdir=x", "--multihost=on"), "multihost"),
        (
            (*SLURM, TEXT, "--workdir=x", "--config.mesh.fsdp=16"),
            "config.mesh is data -1 x fsdp 16 x tensor 1",
        ),
        (
            (*SLURM, TEXT, "--workdir=x", "--config.batch_size=12"),
            "config.batch_size is 12, which 8 devices",
        ),
        ((*SLURM, TEXT, "--workdir=/tmp/x"), "own disk"),
        (
            (*SKY, TEXT, "--workdir=/tmp/x", "--config.data.mixture=('docs=0.1',)"),
            "config.data.mixture=docs is on this machine, and not on those of --on=skypilot",
        ),
        (
            (*SKY, "--config=c4_bert:gmlp_base", "--workdir=/tmp/x"),
            "config.data.train=tfds:c4/en is read from ~/tensorflow_datasets of the machine",
        ),
        (
            (*SLURM, TEXT, "--workdir=x", "--name=My_run"),
            "--name=My_run: expected at most 35 lower-case letters",
        ),
    ],
)
def test_user_errors_are_one_line(arguments, words):
    assert words in preloaded.refused("launch", *arguments)


def shown_launches() -> list[str]:
    """The complete `gmlp launch` commands in the code blocks of the documentation."""
    commands = []
    for page in sorted(Path("docs").rglob("*.md")):
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("gmlp launch "):
                    commands.append(line)
    return commands


@pytest.mark.parametrize("command", shown_launches())
def test_documented_launches_use_reachable_data(command):
    words = shlex.split(command)[1:]
    with_dry_run = dict.fromkeys([*words, "--dry_run"])
    done = preloaded.gmlp(*with_dry_run)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "--config.data.train=" in done.stdout


def test_documentation_shows_every_engine():
    shown = " ".join(shown_launches())
    for engine in ENGINES:
        assert f"--on={engine} " in shown


@pytest.mark.slow
def test_jobs_are_named_after_the_folder_and_numbered_in_a_sweep():
    long_name = 50 * "x"
    names = {
        "/shared/My Run_2/": "my-run-2",
        "/shared/7": "run-7",
        f"/s/{long_name}": long_name[:35],
    }
    for workdir, name in names.items():
        done = preloaded.gmlp("launch", *SLURM, TEXT, f"--workdir={workdir}")
        assert f"\n#SBATCH --job-name={name}\n" in done.stdout
    done = preloaded.gmlp("sweep", TEXT, "--out=/shared/rates", "--sweep.seed=0,1", *SLURM)
    for number in (0, 1):
        assert f"\n#SBATCH --job-name=rates-{number}\n" in done.stdout


def workdir_in(arguments: list[str]) -> str:
    [folder] = [word.partition("=")[2] for word in arguments if word.startswith("--workdir=")]
    return folder


def write_result(folder: Path) -> None:
    folder.mkdir()
    (folder / RESULT_FILE).write_text('{"step": 1, "eval": {"perplexity": 5.0}}')


@pytest.mark.slow
def test_sweep_has_a_job_for_each_unfinished_run(tmp_path):
    """Its arguments are those that --print shows. If all runs are finished, nothing is started."""
    rates = (
        "--sweep.lr=1e-3,2e-3",
        "--sweep.seed=0,1",
        "--config.data.cache=it's $x",
        "--trust=json",
    )
    sweep = ("sweep", TEXT, f"--out={tmp_path}", *rates)
    printed = []
    for line in preloaded.gmlp(*sweep, "--print").stdout.splitlines():
        printed.append(shlex.split(line)[3:])
    assert launched(*sweep, *SKY) == printed
    assert "own disk" in preloaded.refused(*sweep, *SLURM, "--name=rates")

    first, second, third, fourth = printed
    for arguments in (first, second, fourth):
        write_result(tmp_path / workdir_in(arguments))
    assert launched(*sweep, *SKY) == [third]
    write_result(tmp_path / workdir_in(third))
    assert preloaded.gmlp(*sweep, *SKY).stdout.endswith("\n4 of 4 runs are done\n")
