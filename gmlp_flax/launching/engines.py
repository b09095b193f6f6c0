"""Engines that start a run on other machines. Each writes the command for its tool from a config
and a topology."""

import abc
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from gmlp_flax.errors import RunError, did_you_mean
from gmlp_flax.options import option, options_of
from gmlp_flax.planning import chips

TRAIN = ("-m", "gmlp_flax.train")
# The exit code of a run that has saved after a signal. Engines restart it, which they would not do
# after code 0.
STOPPED = 75
OWN_DISKS = ("/tmp/", "/var/tmp/", "/dev/shm/")
TFDS = "tfds:"  # the start of a name of data that tensorflow_datasets prepared
CLOUD_NAMES = {"v5e": "v5litepod"}  # libtpu's name of a TPU -> the cloud's, where they differ


class Job(NamedTuple):
    """One run.

    Attributes:
        name: lower-case letters, digits and hyphens.
        workdir: its run folder.
        words: all arguments of the training command, including --config and --workdir.
        slices: the config's mesh.slices, the number of TPU slices that a network connects.
        reads: key of the config -> the paths and names of the data that the run reads.
    """

    name: str
    workdir: str
    words: tuple[str, ...]
    slices: int = 1
    reads: Mapping[str, Sequence[str]] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Options:
    """The launcher's flags, which are empty, zero or false by default."""

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
    image: str = option("", "A container image of this package, as the Dockerfile builds it.")
    mount: tuple[str, ...] = option(
        (), "BUCKET:/FOLDER mounts a bucket as a folder; /FOLDER exists on all machines."
    )
    spot: bool = option(
        False, "Use machines that cost less and may be taken away; the run then resumes on others."
    )
    engine_flag: tuple[str, ...] = option(
        (), "One more flag for the engine's command: --engine_flag=--partition=long."
    )


class Engine(abc.ABC):
    """One way to start a run.

    Attributes:
        summary: a line for the help.
        tool, install: the command that it calls, and how a user installs it.
        suffix: the suffix of the file that it passes to the tool.
        required, optional: the options that must be given, and those that may be.
        kinds: the kinds of chips that it offers, as `planning.chips` names them.
        remote: whether its machines share nothing with this one, so that the run folder must be in
            a bucket or on a mounted disk.
        shares_disks: whether its machines see the file systems of this one, except OWN_DISKS.
        joins_slices: whether one run can have several TPU slices.
        mounts_buckets: whether it can mount a bucket as a folder.
    """

    summary = ""
    tool = ""
    install = ""
    suffix = ""
    required: tuple[str, ...] = ("topology",)
    optional: tuple[str, ...] = ("engine_flag",)
    kinds: Collection[str] = ()
    remote = False
    shares_disks = False
    joins_slices = False
    mounts_buckets = False

    def __init__(self, name: str, options: Options):
        """Raises RunError if an option is missing, belongs to another engine, or has an invalid
        value."""
        self.name = name
        self.options = options
        self._check_flags()
        self.hardware = chips.parse(options.topology)
        self._check_hardware()
        for mount in options.mount:
            self._check_mount(mount)

    def _check_flags(self) -> None:
        """Raises RunError if a flag is missing, or belongs to another engine."""
        known = {"name", *self.required, *self.optional}
        for flag, declared in options_of(Options).items():
            value = getattr(self.options, flag)
            if flag in self.required and not value:
                raise RunError(f"--on={self.name} needs --{flag}. {declared.comment}")
            if value and flag not in known:
                raise RunError(
                    f"--on={self.name} takes no --{flag}: its options are "
                    f"{', '.join(sorted(known))}"
                )

    def _check_hardware(self) -> None:
        """Raises RunError if the engine does not offer these chips, or the cloud this slice."""
        hardware = self.hardware
        topology = self.options.topology
        if hardware.kind not in self.kinds:
            raise RunError(
                f"--on={self.name} does not give {topology}: it gives {', '.join(self.kinds)}"
            )
        slices = hardware.chip.slices
        if hardware.shape and hardware.shape not in slices:
            raise RunError(
                f"there is no slice {topology} to be had: {hardware.kind} comes as "
                f"{', '.join(slices)}"
            )

    def _check_mount(self, mount: str) -> None:
        """Raises RunError if a --mount is malformed, or a bucket that the engine cannot mount."""
        if not re.fullmatch(r"([^/:\s]+:|[a-z0-9]+://[^/:\s]+:)?/[^:\n\r]+", mount):
            raise RunError(
                f"--mount={mount}: expected BUCKET:/FOLDER, or a /FOLDER that all machines see"
            )
        if not mount.startswith("/") and not self.mounts_buckets:
            raise RunError(
                f"--mount={mount}: --on={self.name} mounts no buckets: attach it, and give its "
                "/FOLDER"
            )

    def nodes(self) -> tuple[int, int]:
        """The number of machines in a GPU cluster, and of GPUs on each. Raises RunError if the GPUs
        do not fill a whole number of machines."""
        count = self.hardware.count
        on_each = min(self.options.gpus_per_node or self.hardware.chip.node, count)
        if count % on_each:
            raise RunError(
                f"{count} GPUs are not a whole number of nodes of {on_each}: give a multiple, or "
                "--gpus_per_node"
            )
        return count // on_each, on_each

    def check(self, job: Job) -> None:
        """Raises RunError if a run needs more slices than the engine offers, if the machines would
        not share or would not keep its folder, or if they would not have its data. The message says
        where the folder or the data may be."""
        if job.slices > 1 and not self.joins_slices:
            raise RunError(
                f"config.mesh.slices is {job.slices}, and --on={self.name} gives one slice: "
                "--on=xpk joins"
            )
        self._check_folder(job.workdir)
        for key, paths in job.reads.items():
            for path in paths:
                self._check_read(key, path)

    def _check_folder(self, workdir: str) -> None:
        """Raises RunError if the machines would not share or would not keep a run folder."""
        if "://" in workdir:
            return
        flag = f"--workdir={workdir}"
        if self._is_on_own_disk(workdir):
            raise RunError(f"{flag} is on one machine's own disk: give a folder that all nodes see")
        if self.remote and not self._is_mounted(workdir):
            raise RunError(
                f"{flag} would be lost with the machines of --on={self.name}: give {self._places()}"
            )

    def _check_read(self, key: str, path: str) -> None:
        """Raises RunError if a path that a run reads is on this machine but not on the engine's. A
        path that does not exist here may be in their image."""
        if "://" in path:
            return
        flag = f"config.{key}={path}"
        if self.remote and path.startswith(TFDS):
            raise RunError(
                f"{flag} is read from ~/tensorflow_datasets of the machine, which those of "
                f"--on={self.name} do not have: give {self._places()}"
            )
        is_here = os.path.exists(path)
        if is_here and self._is_on_own_disk(path):
            raise RunError(f"{flag} is on this machine's own disk: give a path that all nodes see")
        if is_here and self.remote and not self._is_mounted(path):
            raise RunError(
                f"{flag} is on this machine, and not on those of --on={self.name}: give "
                f"{self._places()}"
            )

    def _is_on_own_disk(self, path: str) -> bool:
        """Whether the machines share this one's file systems, but not the one of the path."""
        return self.shares_disks and os.path.abspath(path).startswith(OWN_DISKS)

    def _is_mounted(self, path: str) -> bool:
        """Whether a path is below a --mount."""
        mounted = tuple(f"{mount.rstrip('/')}/" for mount in self._mounted_folders())
        return os.path.normpath(path).startswith(mounted)

    def _places(self) -> str:
        """The places where the machines see files, for messages."""
        bucket = "BUCKET:" if self.mounts_buckets else ""
        return f"gs://BUCKET/FOLDER, or a folder below a --mount={bucket}/FOLDER"

    def _mounted_folders(self) -> list[str]:
        """The folders of --mount, without their buckets."""
        folders = []
        for mount in self.options.mount:
            _, _, folder = mount.rpartition(":")
            folders.append(folder)
        return folders

    @abc.abstractmethod
    def specification(self, job: Job) -> tuple[list[str], str]:
        """The tool's command for a run, and the text of a file whose path is appended to the
        command, or "" if there is no file. Raises RunError if an option makes no sense for this
        run."""

    def show(self, job: Job) -> str:
        """The command as text, preceded by its file if there is one."""
        command, file = self.specification(job)
        if not file:
            return shlex.join(command)
        submitted = shlex.join([*command, job.name + self.suffix])
        return f"{file}# submitted by: {submitted}"

    def start(self, job: Job) -> int:
        """Submits a run with the tool; returns the tool's exit code."""
        command, file = self.specification(job)
        with tempfile.TemporaryDirectory(prefix="gmlp_launch_") as folder:
            if file:
                path = Path(folder, job.name + self.suffix)
                path.write_text(file, encoding="utf-8")
                command.append(str(path))
            sys.stdout.flush()
            completed = subprocess.run(command, check=False)
        return completed.returncode


# Without a TPU this fails instead of training on the CPU.
PREFIX = ("exec", "env", "JAX_PLATFORMS=tpu,cpu", "python")
RESTARTS = 100  # preemptions and failures together


class Xpk(Engine):
    """A workload in containers of an image. `exec` passes XPK's SIGTERM to the training process."""

    summary = "TPUs of a GKE cluster that xpk made: queues, several slices, restarts"
    tool = "xpk"
    install = (
        "pipx install xpk, in an environment of its own; pip install 'gmlp_flax[xpk]' changes "
        "tested versions"
    )
    required = ("topology", "cluster", "zone", "project", "image")
    optional = ("mount", "spot", "engine_flag")
    kinds = ("v4", "v5e", "v5p", "v6e", "tpu7x")
    remote = True
    joins_slices = True

    def specification(self, job: Job) -> tuple[list[str], str]:
        """An `xpk workload create`."""
        options = self.options
        hardware = self.hardware
        words = [*PREFIX, *TRAIN, *job.words, "--multihost=on", f"--stopped_code={STOPPED}"]
        cloud_kind = CLOUD_NAMES.get(hardware.kind, hardware.kind)
        flags = {
            "cluster": options.cluster,
            "project": options.project,
            "zone": options.zone,
            "workload": job.name,
            "tpu-type": f"{cloud_kind}-{hardware.shape}",
            "num-slices": job.slices,
            "docker-image": options.image,
            "max-restarts": RESTARTS,
            "restart-on-exit-codes": f"1,{STOPPED}",
            # Kubernetes reads a dollar before bash does
            "command": shlex.join(words).replace("$", "$$"),
        }
        command = ["xpk", "workload", "create"]
        command += [f"--{flag}={value}" for flag, value in flags.items()]
        if options.spot:
            command.append("--spot")
        command += options.engine_flag
        return command, ""


def _gpus() -> dict[str, str]:
    names = {}
    for kind, chip in chips.CHIPS.items():
        if chip.node:
            names[kind] = kind.removeprefix("gpu:").upper()
    names["gpu:a100"] = "A100-80GB"
    names["gpu:a100-40gb"] = "A100"
    return names


GPUS = _gpus()  # kind -> SkyPilot's name
# Kind -> the number of the cloud's TPU type for each chip: v4-8 has four chips.
TPUS = {"v2": 2, "v3": 2, "v4": 2, "v5e": 1, "v5p": 2, "v6e": 1}
# For kinds for which SkyPilot 0.14 would choose the runtime of another kind.
RUNTIMES = {"v5e": {"runtime_version": "v2-alpha-tpuv5-lite"}}
SETUP = "scripts/setup.sh"
# The images of TPU VMs have Python 3.10 or older; uv installs its own.
INSTALL = (
    "curl -LsSf https://astral.sh/uv/install.sh | sh && export PATH=$HOME/.local/bin:$PATH && "
    f"uv python install 3.12 && PYTHON=$(uv python find 3.12) {SETUP}"
)
# The nodes of a GPU cluster find each other through SkyPilot's variables. The hosts of a TPU slice
# know each other without them.
JOINING = (
    '--coordinator="$(head -n 1 <<<"$SKYPILOT_NODE_IPS"):8476" --processes="$SKYPILOT_NUM_NODES" '
    '--process="$SKYPILOT_NODE_RANK"'
)


class SkyPilot(Engine):
    """A managed job, in containers of an image or on machines on which this checkout is
    installed."""

    summary = "machines of any cloud, found by SkyPilot, also spot machines with recovery"
    tool = "sky"
    suffix = ".yaml"
    install = (
        "pipx install 'skypilot[gcp]', in an environment of its own, or pip install "
        "'gmlp_flax[sky]'"
    )
    optional = ("gpus_per_node", "infra", "image", "mount", "spot", "engine_flag")
    kinds = (*TPUS, *GPUS)
    remote = True
    mounts_buckets = True

    def specification(self, job: Job) -> tuple[list[str], str]:
        """A task file, and the command that takes it."""
        options = self.options
        kind = self.hardware.kind
        nodes = 1
        if kind in TPUS:
            number = self.hardware.count * TPUS[kind]
            accelerators = f"tpu-{CLOUD_NAMES.get(kind, kind)}-{number}"
        else:
            nodes, gpus = self.nodes()
            accelerators = f"{GPUS[kind]}:{gpus}"
        if not (options.image or os.path.exists(SETUP)):
            raise RunError(
                f"there is no {SETUP} here: run this in a checkout of the repository, or give "
                "--image"
            )
        resources: dict[str, Any] = {}
        if options.infra:
            resources["infra"] = options.infra
        resources["accelerators"] = accelerators
        if kind in RUNTIMES:
            resources["accelerator_args"] = RUNTIMES[kind]
        resources["use_spot"] = options.spot
        recovery = {"max_restarts_on_errors": 3, "recover_on_exit_codes": [STOPPED]}
        resources["job_recovery"] = recovery
        task: dict[str, Any] = {"name": job.name, "num_nodes": nodes, "resources": resources}
        mounts = self._file_mounts()
        if mounts:
            task["file_mounts"] = mounts
        if not options.image:  # this checkout is copied and installed
            platform = "tpu" if kind in TPUS else "cuda"
            task["workdir"] = "."
            task["setup"] = f"{INSTALL} {platform} gcs"
        task["run"] = self._command(job, kind in TPUS, several=nodes > 1)
        text = yaml.safe_dump(task, sort_keys=False, width=1000)
        return ["sky", "jobs", "launch", "--yes", "--async", *options.engine_flag], text

    def _file_mounts(self) -> dict[str, dict[str, str]]:
        """SkyPilot's description of the folders on which buckets are mounted."""
        mounts = {}
        for mount in self.options.mount:
            if mount.startswith("/"):
                continue
            bucket, _, folder = mount.rpartition(":")
            source = bucket if "://" in bucket else f"gs://{bucket}"
            mounts[folder] = {"source": source, "mode": "MOUNT"}
        return mounts

    def _command(self, job: Job, has_tpus: bool, several: bool) -> str:
        """The command that trains on each machine. Its container, if any, reaches the host's
        network, devices and mounted folders."""
        platforms = "JAX_PLATFORMS=tpu,cpu" if has_tpus else "JAX_PLATFORMS=cuda,cpu"
        words = shlex.join([*TRAIN, *job.words, f"--stopped_code={STOPPED}"])
        joining = ""
        if several:
            joining = f" {JOINING}"
        elif has_tpus:
            joining = " --multihost=on"
        if not self.options.image:
            return f"exec env {platforms} .venv/bin/python {words}{joining}"
        image = shlex.quote(self.options.image)
        volumes = ""
        for folder in self._mounted_folders():
            volume = shlex.quote(f"{folder}:{folder}")
            volumes += f" --volume={volume}"
        gpus = "" if has_tpus else " --gpus=all"
        return (
            f"exec sudo docker run --rm --init --network=host --privileged --shm-size=16g{gpus} "
            f'--user="$(id -u):$(id -g)" --env=HOME=/tmp --env={platforms}{volumes} '
            f"{image} python {words}{joining}"
        )


# JAX finds its cluster in SLURM's variables, and gives each process of a node the GPU that has the
# number of the process. So all GPUs must be visible to all processes. With --gpus-per-node they
# are, and with --gpus-per-task they would not be.
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
        words = [sys.executable, *TRAIN, *job.words, "--multihost=on"]
        script = SCRIPT.format(name=job.name, nodes=nodes, gpus=gpus, command=shlex.join(words))
        return ["sbatch", *self.options.engine_flag], script


ENGINES: dict[str, type[Engine]] = {"xpk": Xpk, "skypilot": SkyPilot, "slurm": Slurm}


def find(name: str, options: Options) -> Engine:
    """The engine with this name and these options. Raises RunError if there is none, or if an
    option is invalid."""
    if name not in ENGINES:
        raise RunError(f"there is no engine {name!r} for --on; {did_you_mean(name, ENGINES)}")
    engine = ENGINES[name]
    return engine(name, options)


def launch(engine: Engine, jobs: Sequence[Job], dry_run: bool) -> int:
    """Starts the runs one after the other, or prints what the engine's tool would get.

    Returns:
        0, or the exit code of the first start that failed. The other runs are started regardless.

    Raises:
        RunError: the engine cannot use a run's folder or data, or its tool is missing. Nothing was
            started.
    """
    for job in jobs:
        engine.check(job)
    if dry_run:
        texts = [engine.show(job) for job in jobs]
        print("\n".join(texts))
        return 0
    if not shutil.which(engine.tool):
        raise RunError(f"there is no {engine.tool} here: {engine.install}")
    first_failure = 0
    for job in jobs:
        code = engine.start(job)
        if code and len(jobs) > 1:
            print(f"{job.name}: ended with code {code}", file=sys.stderr, flush=True)
        first_failure = first_failure or code
    return first_failure
