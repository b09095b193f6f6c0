"""Calls of `gmlp launch --dry_run`; python -m tests.launching.golden writes what they print,
golden/NAME.txt."""

import shlex
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"
# Words that a shell, YAML or Kubernetes could take for something else.
AWKWARD = (
    "--config.data.cache=a 'b' \"c\" $HOME $$ $(date) `id` ${X} \\ *\n  d: #e\t{f} %s é",
    "--config.optimizer.freeze=('a','b')",
    "--config.data.train=gs://my-bucket/data",
)
IMAGE = "--image=gcr.io/my-project/gmlp"
XPK = ("--on=xpk", "--cluster=my-cluster", "--zone=us-central1-a", "--project=my-project", IMAGE)
BERT = ("--config=c4_bert:gmlp_base", *AWKWARD)
IMAGENET = ("--config=imagenet:gmlp_s", *AWKWARD)
BUCKET = "--workdir=gs://my-bucket/runs/Base_1"
MOUNTED = "--workdir=/mnt/runs/Base_1"
PRIORITY = ("--engine_flag=--priority=high",)
HOURS = ("--engine_flag=--time=24:00:00",)
MOUNT = "--mount=my-bucket:/mnt/runs"
CALLS = {
    "xpk": (*XPK, "--topology=v5e:4x4", *BERT, BUCKET),
    "xpk_two_slices": (
        *XPK,
        "--topology=v5p:2x2x2",
        "--spot",
        *PRIORITY,
        *BERT,
        BUCKET,
        "--config.mesh.slices=2",
    ),
    "skypilot_tpu": (
        "--on=skypilot",
        "--topology=v5e:4x4",
        "--infra=gcp/us-central1",
        "--spot",
        *BERT,
        BUCKET,
    ),
    "skypilot_gpu": ("--on=skypilot", "--topology=gpu:h100x16", MOUNT, *IMAGENET, MOUNTED),
    "skypilot_image": (
        "--on=skypilot",
        "--topology=gpu:a100x8",
        IMAGE,
        MOUNT,
        "--spot",
        *IMAGENET,
        MOUNTED,
    ),
    "slurm": ("--on=slurm", "--topology=gpu:h100x32", *HOURS, *IMAGENET, "--workdir=/shared/base"),
}


def call(name: str) -> list[str]:
    """The command line of a call, without the program."""
    return ["launch", "--dry_run", *CALLS[name]]


def settled(printed: str) -> str:
    """What a call prints, on any machine."""
    return printed.replace(shlex.quote(sys.executable), "PYTHON")


def expected(name: str) -> str:
    """What a call prints, settled."""
    return (FOLDER / f"{name}.txt").read_text()


if __name__ == "__main__":
    from tests import preloaded

    FOLDER.mkdir(exist_ok=True)
    for each in CALLS:
        done = preloaded.gmlp(*call(each))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        (FOLDER / f"{each}.txt").write_text(settled(done.stdout))
