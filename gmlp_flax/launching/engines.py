"""Starting a run somewhere else: the engines, each of which writes what its tool takes from a
config and a topology."""

import abc
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from gmlp_flax.errors import RunError, did_you_mean
from gmlp_flax.options import option, options_of
from gmlp_flax.planning import chips

TRAIN = ("-m", "gmlp_flax.train")
# The exit code of a run that a signal stopped and that has saved: engines start it again, as none
# would after a 0.
STOPPED = 75
OWN_DISKS = ("/tmp/", "/var/tmp/", "/dev/shm/")
CLOUD_NAMES = {"v5e": "v5litepod"}  # of TPUs, if the cloud has another name than libtpu


class Job(NamedTuple):
    """One run.

    Attributes:
        name: lower-case letters, digits and hyphens.
        workdir: its run folder.
        words: all of training's arguments, --config and --workdir among them.
        slices: the config's mesh.slices, TPU slices that a network joins.
    """

    name: str
    workdir: str
    words: tuple[str, ...]
    slices: int = 1


@dataclasses.dataclass(frozen=True)
class Options:
    """The launcher's flags; empty, zero or false if they are not given."""

    name: str = option(
        "", "The name of the run or of the sweep, by default the last part of its folder."
    )
    topology: str = option("", "The hardware, as gmlp plan reads it: v5e:4x4, gpu:h100x8, ...")
    gpus_per_node: int = option(
        0, "GPUs on a node, if they are not as many as one machine of this kind has."
    )
    cluster: str = option("", "The name of the GKE cluster.")
    zone: str = option("", "The zone, such as us-central1-a.")
    project: str = option("", "The Google Cloud project.")
    infra: str = option(
        "", "Where to look for machines: gcp, gcp/us-central1, aws, k8s, ...; anywhere by default."
    )
    image: str = option("", "A container image of this package, such as the Dockerfile makes.")
    mount: tuple[str, ...] = option(
        (), "BUCKET:/FOLDER shows a bucket as a folder; /FOLDER is there on all machines."
    )
    spot: bool = option(
        False, "Machines that cost less and may be taken away; the run then resumes on others."
    )
    engine_flag: tuple[str, ...] = option(
        (), "One more word for the engine's command: --engine_flag=--partition=long."
    )


class Engine(abc.ABC):
    """One way to start a run.

    Attributes:
        summary: a line for the help.
        tool, install: the command that it calls, and how a user gets it.
        suffix: of the file that it gives to the tool.
        required, optional: the options that must be given, and those that may be.
        kinds: the kinds of chips that it gives, as `planning.chips` names them.
        remote: whether its machines have nothing in common with this one, so that the run folder
            must lie elsewhere.
        shares_disks: whether its machines see the file systems of this one, but for OWN_DISKS.
        joins_slices: whether it gives several TPU slices to one run.
        mounts_buckets: whether it shows a bucket as a folder.
    """

    summary = ""
    tool = install = suffix = ""
    required: tuple[str, ...] = ("topology",)
    optional: tuple[str, ...] = ("engine_flag",)
    kinds: Collection[str] = ()
    remote = shares_disks = joins_slices = mounts_buckets = False

    def __init__(self, name: str, options: Options):
        """Raises RunError if an option is missing, is for another engine, or has a value that makes
        no sense."""
        self.name = name
        self.options = options
        known = {"name", *self.required, *self.optional}
        for flag, declared in options_of(Options).items():
            given = getattr(options, flag)
            if flag in self.required and not given:
                raise RunError(f"--on={name} needs --{flag}. {declared.comment}")
            if given and flag not in known:
                raise RunError(
                    f"--on={name} takes no --{flag}: its options are {', '.join(sorted(known))}"
                )
        self.hardware = hardware = chips.parse(options.topology)
        if hardware.kind not in self.kinds:
            raise RunError(
                f"--on={name} does not give {options.topology}: it gives {', '.join(self.kinds)}"
            )
        if hardware.shape and hardware.shape not in (usual := hardware.chip.slices):
            raise RunError(
                f"there is no slice {options.topology} to be had: {hardware.kind} comes as {', '.join(usual)}"
            )
        for mount in options.mount:
            if not re.fullmatch(r"([^/:\s]+:|[a-z0-9]+://[^/:\s]+:)?/[^:\n\r]+", mount):
                raise RunError(
                    f"--mount={mount}: expected BUCKET:/FOLDER, or a /FOLDER that all machines see"
                )
            if not (mount.startswith("/") or self.mounts_buckets):
                raise RunError(
                    f"--mount={mount}: --on={name} mounts no buckets: attach it, and give its /FOLDER"
                )

    def nodes(self) -> tuple[int, int]:
        """The number of machines of a GPU cluster and of GPUs on each. Raises RunError if they do
        not divide."""
        count = self.hardware.count
        on_each = min(self.options.gpus_per_node or self.hardware.chip.node, count)
        if count % on_each:
            raise RunError(
                f"{count} GPUs are no whole number of nodes of {on_each}: give a multiple, or --gpus_per_node"
            )
        return count // on_each, on_each

    def check(self, job: Job) -> None:
        """Raises RunError if a run has more slices than there are, or if the machines would not
        share or not keep its folder; then it says where that may lie."""
        if job.slices > 1 and not self.joins_slices:
            raise RunError(
                f"config.mesh.slices is {job.slices}, and --on={self.name} gives one slice: --on=xpk joins"
            )
        if "://" in job.workdir:
            return
        folder = os.path.normpath(job.workdir)
        refused = f"--workdir={job.workdir}"
        if self.shares_disks and os.path.abspath(folder).startswith(OWN_DISKS):
            raise RunError(
                f"{refused} is on one machine's own disk: give a folder that all nodes see"
            )
        mounted = tuple(mount.rpartition(":")[2].rstrip("/") + "/" for mount in self.options.mount)
        if self.remote and not folder.startswith(mounted):
            raise RunError(
                f"{refused} would be lost with the machines of --on={self.name}: give gs://BUCKET/FOLDER, "
                f"or a folder below a --mount={'BUCKET:' if self.mounts_buckets else ''}/FOLDER"
            )

    @abc.abstractmethod
    def specification(self, job: Job) -> tuple[list[str], str]:
        """The tool's command for a run, and the text of a file whose path is the command's last
        word; empty for none. Raises RunError if an option makes no sense for this run."""

    def show(self, job: Job) -> str:
        """The same, for reading."""
        command, file = self.specification(job)
        submitted = shlex.join([*command, job.name + self.suffix] if file else command)
        return f"{file}# submitted by: {submitted}" if file else submitted

    def start(self, job: Job) -> int:
        """Hands a run to the tool; returns the tool's exit code."""
        command, file = self.specification(job)
        with tempfile.TemporaryDirectory(prefix="gmlp_launch_") as folder:
            if file:
                path = Path(folder, job.name + self.suffix)
                path.write_text(file, encoding="utf-8")
                command.append(str(path))
            sys.stdout.flush()
            return subprocess.run(command, check=False).returncode


# Without a TPU this fails instead of training on the CPU.
PREFIX = ("exec", "env", "JAX_PLATFORMS=tpu,cpu", "python")
RESTARTS = 100  # preemptions and failures together


class Xpk(Engine):
    """A workload in containers of an image. `exec` hands XPK's SIGTERM to training itself."""

    summary = "TPUs of a GKE cluster that xpk made: queues, several slices, restarts"
    tool = "xpk"
    install = "pipx install xpk, in an environment of its own; pip install 'gmlp_flax[xpk]' changes tested versions"
    required = ("topology", "cluster", "zone", "project", "image")
    optional = ("mount", "spot", "engine_flag")
    kinds = ("v4", "v5e", "v5p", "v6e", "tpu7x")
    remote = joins_slices = True

    def specification(self, job: Job) -> tuple[list[str], str]:
        """An `xpk workload create`."""
        options = self.options
        hardware = self.hardware
        words = [*PREFIX, *TRAIN, *job.words, "--multihost=on", f"--stopped_code={STOPPED}"]
        flags = {
            "cluster": options.cluster,
            "project": options.project,
            "zone": options.zone,
            "workload": job.name,
            "tpu-type": f"{CLOUD_NAMES.get(hardware.kind, hardware.kind)}-{hardware.shape}",
            "num-slices": job.slices,
            "docker-image": options.image,
            "max-restarts": RESTARTS,
            "restart-on-exit-codes": f"1,{STOPPED}",
            # Kubernetes reads a dollar before bash does
            "command": shlex.join(words).replace("$", "$$"),
        }
        own = [f"--{flag}={value}" for flag, value in flags.items()]
        return [
            "xpk",
            "workload",
            "create",
            *own,
            *["--spot"] * options.spot,
            *options.engine_flag,
        ], ""


# Kind -> SkyPilot's name.
GPUS = {kind: kind[4:].upper() for kind, chip in chips.CHIPS.items() if chip.node}
GPUS |= {"gpu:a100": "A100-80GB", "gpu:a100-40gb": "A100"}
# by how much a chip counts in the cloud's type
TPUS = {"v2": 2, "v3": 2, "v4": 2, "v5e": 1, "v5p": 2, "v6e": 1}
# where SkyPilot 0.14 would take that of another kind
RUNTIMES = {"v5e": {"runtime_version": "v2-alpha-tpuv5-lite"}}
SETUP = "scripts/setup.sh"
# The images of TPU VMs have Python 3.10 or older; uv brings its own.
INSTALL = (
    "curl -LsSf https://astral.sh/uv/install.sh | sh && export PATH=$HOME/.local/bin:$PATH && "
    f"uv python install 3.12 && PYTHON=$(uv python find 3.12) {SETUP}"
)
# The nodes of a GPU cluster find each other through SkyPilot's variables. Hosts of a TPU slice know
# of each other.
JOINING = (
    '--coordinator="$(head -n 1 <<<"$SKYPILOT_NODE_IPS"):8476" --processes="$SKYPILOT_NUM_NODES" '
    '--process="$SKYPILOT_NODE_RANK"'
)


class SkyPilot(Engine):
    """A managed job, in containers of an image or on machines where this checkout is installed."""

    summary = "machines of any cloud, found by SkyPilot, also spot machines with recovery"
    tool = "sky"
    suffix = ".yaml"
    install = "pipx install 'skypilot[gcp]', in an environment of its own, or pip install 'gmlp_flax[sky]'"
    optional = ("gpus_per_node", "infra", "image", "mount", "spot", "engine_flag")
    kinds = (*TPUS, *GPUS)
    remote = mounts_buckets = True

    def specification(self, job: Job) -> tuple[list[str], str]:
        """A task file, and the command that takes it."""
        options = self.options
        kind = self.hardware.kind
        nodes, gpus = (1, 0) if kind in TPUS else self.nodes()
        if kind in TPUS:
            accelerators = f"tpu-{CLOUD_NAMES.get(kind, kind)}-{self.hardware.count * TPUS[kind]}"
        else:
            accelerators = f"{GPUS[kind]}:{gpus}"
        if not (options.image or os.path.exists(SETUP)):
            raise RunError(
                f"there is no {SETUP} here: run this in a checkout of the repository, or give --image"
            )
        named = [mount.rpartition(":") for mount in options.mount if not mount.startswith("/")]
        sources = {
            folder: bucket if "://" in bucket else f"gs://{bucket}" for bucket, _, folder in named
        }
        resources = {
            "infra": options.infra,
            "accelerators": accelerators,
            "accelerator_args": RUNTIMES.get(kind),
            "use_spot": options.spot,
            "job_recovery": {"max_restarts_on_errors": 3, "recover_on_exit_codes": [STOPPED]},
        }
        task = {
            "name": job.name,
            "num_nodes": nodes,
            "resources": {
                key: value for key, value in resources.items() if value not in ("", None)
            },
            "file_mounts": {
                folder: {"source": source, "mode": "MOUNT"} for folder, source in sources.items()
            },
            # Without an image this checkout is copied, and installed.
            "workdir": "" if options.image else ".",
            "setup": "" if options.image else f"{INSTALL} {'tpu' if kind in TPUS else 'cuda'} gcs",
            "run": self._command(job, kind in TPUS, several=nodes > 1),
        }
        text = yaml.safe_dump(
            {key: value for key, value in task.items() if value}, sort_keys=False, width=1000
        )
        return ["sky", "jobs", "launch", "--yes", "--async", *options.engine_flag], text

    def _command(self, job: Job, of_tpus: bool, several: bool) -> str:
        """Training on each machine. Its container, if any, reaches the host's network, devices and
        mounted folders."""
        platforms = f"JAX_PLATFORMS={'tpu,cpu' if of_tpus else 'cuda,cpu'}"
        words = shlex.join([*TRAIN, *job.words, f"--stopped_code={STOPPED}"])
        joining = f" {JOINING}" if several else " --multihost=on" if of_tpus else ""
        if not self.options.image:
            return f"exec env {platforms} .venv/bin/python {words}{joining}"
        folders = [mount.rpartition(":")[2] for mount in self.options.mount]
        volumes = "".join(f" --volume={shlex.join([f'{folder}:{folder}'])}" for folder in folders)
        gpus = "" if of_tpus else " --gpus=all"
        return (
            f"exec sudo docker run --rm --init --network=host --privileged --shm-size=16g{gpus} "
            f'--user="$(id -u):$(id -g)" --env=HOME=/tmp --env={platforms}{volumes} '
            f"{shlex.join([self.options.image])} python {words}{joining}"
        )


# JAX finds its cluster in SLURM's variables, and gives each process the GPU of its number on the
# node: all GPUs must be visible to all of them, which --gpus-per-node does and --gpus-per-task
# would not.
SCRIPT = r"""#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={gpus}
#SBATCH --gpus-per-node={gpus}
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

# Only this shell gets the signal, and so it knows that the time is over, and not that the run is done.
over= again=yes
trap 'over=yes again=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
srun --kill-on-bad-exit=1 ${{SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"}} \
  {command} &
while [ -n "$again" ]; do  # a signal ends the wait, not the training
  again= code=0
  wait $! || code=$?
done
# Failures one after another are counted in a file. Code 2 is a mistake in the arguments: trying again does not help.
failures=slurm-$SLURM_JOB_ID.failures
if [ "$code" -eq 0 ]; then
  rm -f "$failures"
else
  echo failed >>"$failures"
fi
count=$(cat "$failures" 2>/dev/null | wc -l)
if {{ [ -n "$over" ] || [ "$code" -ne 0 ]; }} && [ "$code" -ne 2 ] && [ "$count" -le 5 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


class Slurm(Engine):
    """One process per GPU, on one node or several."""

    summary = "GPU nodes under SLURM, from the login node"
    tool = "sbatch"
    install = "run this on the cluster's login node"
    suffix = ".sbatch"
    optional = ("gpus_per_node", "engine_flag")
    kinds = tuple(GPUS)
    shares_disks = True

    def specification(self, job: Job) -> tuple[list[str], str]:
        """A batch script."""
        nodes, gpus = self.nodes()
        command = shlex.join([sys.executable, *TRAIN, *job.words, "--multihost=on"])
        script = SCRIPT.format(name=job.name, nodes=nodes, gpus=gpus, command=command)
        return ["sbatch", *self.options.engine_flag], script


ENGINES: dict[str, type[Engine]] = {"xpk": Xpk, "skypilot": SkyPilot, "slurm": Slurm}


def find(name: str, options: Options) -> Engine:
    """The engine of a name, with its options; raises RunError if there is none, or an option is
    wrong."""
    if name not in ENGINES:
        raise RunError(f"there is no engine {name!r} for --on; {did_you_mean(name, ENGINES)}")
    return ENGINES[name](name, options)


def launch(engine: Engine, jobs: Sequence[Job], dry_run: bool) -> int:
    """Starts runs, one after the other, or prints what would be handed to the engine's tool.

    Returns:
        0, or the exit code of the first start that failed; the others are tried nonetheless.

    Raises:
        RunError: a run's folder does not suit the engine, or its tool is missing; nothing was
            started.
    """
    for job in jobs:
        engine.check(job)
    if dry_run:
        print(*map(engine.show, jobs), sep="\n")
        return 0
    if not shutil.which(engine.tool):
        raise RunError(f"there is no {engine.tool} here: {engine.install}")
    codes = []
    for job in jobs:
        codes.append(engine.start(job))
        if codes[-1] and len(jobs) > 1:
            print(f"{job.name}: ended with code {codes[-1]}", file=sys.stderr, flush=True)
    return next(filter(None, codes), 0)
