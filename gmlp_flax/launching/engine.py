"""What every engine shares: the run that it starts, the launcher's options, the checks, and how words are quoted."""

import abc
import dataclasses
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from gmlp_flax.errors import RunError
from gmlp_flax.options import option, options_of
from gmlp_flax.planning import chips
from gmlp_flax.planning.chips import Topology

TRAIN = ("-m", "gmlp_flax.train")
# The exit code of a run that a signal stopped and that has saved: engines start it again, as none would after a 0.
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

    name: str = option("", "The name of the run or of the sweep, by default the last part of its folder.")
    topology: str = option("", "The hardware, as gmlp plan reads it: v5e:4x4, gpu:h100x8, ...")
    gpus_per_node: int = option(0, "GPUs on a node, if they are not as many as one machine of this kind has.")
    cluster: str = option("", "The name of the GKE cluster.")
    zone: str = option("", "The zone, such as us-central1-a.")
    project: str = option("", "The Google Cloud project.")
    infra: str = option("", "Where to look for machines: gcp, gcp/us-central1, aws, k8s, ...; anywhere by default.")
    image: str = option("", "A container image of this package, such as the Dockerfile makes.")
    mount: tuple[str, ...] = option((), "BUCKET:/FOLDER shows a bucket as a folder; /FOLDER is there on all machines.")
    spot: bool = option(False, "Machines that cost less and may be taken away; the run then goes on on others.")
    engine_flag: tuple[str, ...] = option((), "One more word for the engine's command: --engine_flag=--partition=long.")


class Engine(abc.ABC):
    """One way to start a run.

    Attributes:
        summary: a line for the help.
        tool, install: the command that it calls, and how a user gets it.
        suffix: of the file that it gives to the tool.
        required, optional: the options that must be given, and those that may be.
        kinds: the kinds of chips that it gives, as `planning.chips` names them.
        unavailable: topologies of these kinds that it does not give.
        remote: whether its machines have nothing in common with this one, so that the run folder must lie elsewhere.
        shares_disks: whether its machines see the file systems of this one, but for OWN_DISKS.
        joins_slices: whether it gives several TPU slices to one run.
        mounts_buckets: whether it shows a bucket as a folder.
    """

    summary = ""
    tool = install = suffix = ""
    required: tuple[str, ...] = ("topology",)
    optional: tuple[str, ...] = ("engine_flag",)
    kinds: Collection[str] = ()
    unavailable: Collection[str] = ()
    remote = shares_disks = joins_slices = mounts_buckets = False

    def __init__(self, name: str, options: Options):
        """Raises RunError if an option is missing, is for another engine, or has a value that makes no sense."""
        self.name, self.options = name, options
        known = {"name", *self.required, *self.optional}
        for flag, declared in options_of(Options).items():
            given = getattr(options, flag)
            if flag in self.required and not given:
                raise RunError(f"--on={name} needs --{flag}. {declared.comment}")
            if given and flag not in known:
                raise RunError(f"--on={name} takes no --{flag}: its options are {', '.join(sorted(known))}")
        self.hardware = self._hardware(options.topology)
        for mount in options.mount:
            if not re.fullmatch(r"([^/:\s]+:|[a-z0-9]+://[^/:\s]+:)?/[^:\n\r]+", mount):
                raise RunError(f"--mount={mount}: expected BUCKET:/FOLDER, or a /FOLDER that all machines see")
            if not (mount.startswith("/") or self.mounts_buckets):
                raise RunError(f"--mount={mount}: --on={name} mounts no buckets: attach it, and give its /FOLDER")

    def _hardware(self, topology: str) -> Topology:
        hardware = chips.parse(topology)
        if hardware.kind not in self.kinds:
            raise RunError(f"--on={self.name} does not give {topology}: it gives {', '.join(self.kinds)}")
        if topology in self.unavailable:
            raise RunError(f"--on={self.name} does not give {topology}: take the next larger slice, another engine")
        if hardware.shape and hardware.shape not in hardware.chip.slices:
            usual = ", ".join(hardware.chip.slices)
            raise RunError(f"there is no slice {topology} to be had: {hardware.kind} comes as {usual}")
        return hardware

    def nodes(self) -> tuple[int, int]:
        """The number of machines of a GPU cluster and of GPUs on each. Raises RunError if they do not divide."""
        count = self.hardware.count
        on_each = min(self.options.gpus_per_node or self.hardware.chip.node, count)
        if count % on_each:
            raise RunError(
                f"{count} GPUs are no whole number of nodes of {on_each}: give a multiple, or --gpus_per_node"
            )
        return count // on_each, on_each

    def check(self, job: Job) -> None:
        """Raises RunError if a run has more slices than there are, or if the machines would not share or not keep its
        folder; then it says where that may lie."""
        if job.slices > 1 and not self.joins_slices:
            raise RunError(f"config.mesh.slices is {job.slices}, and --on={self.name} gives one slice: --on=xpk joins")
        if "://" in job.workdir:
            return
        folder, refused = os.path.normpath(job.workdir), f"--workdir={job.workdir}"
        if self.shares_disks and os.path.abspath(folder).startswith(OWN_DISKS):
            raise RunError(f"{refused} is on one machine's own disk: give a folder that all nodes see")
        mounted = tuple(mount.rpartition(":")[2].rstrip("/") + "/" for mount in self.options.mount)
        if self.remote and not folder.startswith(mounted):
            raise RunError(
                f"{refused} would be lost with the machines of --on={self.name}: give gs://BUCKET/FOLDER, "
                f"or a folder below a --mount={'BUCKET:' if self.mounts_buckets else ''}/FOLDER"
            )

    @abc.abstractmethod
    def specification(self, job: Job) -> tuple[list[str], str]:
        """The tool's command for a run, and the text of a file whose path is the command's last word; empty for none.
        Raises RunError if an option makes no sense for this run."""

    def show(self, job: Job) -> str:
        """The same, for reading."""
        command, file = self.specification(job)
        return f"{file}# submitted by: {quoted([*command, job.name + self.suffix])}" if file else quoted(command)

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


def quoted(words: Sequence[str], unsafe: str = "") -> str:
    """Words as one line of printable characters that bash reads back.

    Args:
        words: the words.
        unsafe: characters that must not appear as they are, because something reads them before bash does.
    """

    def quote(word: str) -> str:
        hidden = {letter for letter in word if letter in unsafe or not letter.isprintable()}
        if not hidden:
            return shlex.quote(word)
        codes = {letter: "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter)) for letter in hidden}
        codes |= {"\\": "\\\\", "'": "\\'"}
        return f"$'{word.translate(str.maketrans(codes))}'"

    return " ".join(map(quote, words))
