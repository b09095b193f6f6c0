"""Plain TPU VMs: scripts/launch_tpu.sh makes a slice, trains on it over ssh, and makes it anew when it is preempted."""

from __future__ import annotations

import os

from gmlp_flax.errors import RunError
from gmlp_flax.launching import hardware
from gmlp_flax.launching.engine import Engine, Job, Specification

SCRIPT = "scripts/launch_tpu.sh"  # in a checkout, which it copies to the workers


class TpuVm(Engine):
    """A slice that this machine watches over. The runs of a sweep share it, one after the other."""

    what = "a slice of TPU VMs, by gcloud and ssh (scripts/launch_tpu.sh)"
    tool, install = "gcloud", "see https://cloud.google.com/sdk/docs/install"
    needs = ("topology", "zone")
    takes = ("project", "mount", "spot", "engine_flag")
    kinds = tuple(hardware.TPUS)
    remote = mounts_buckets = True

    def require_tool(self) -> None:
        """As of every engine; this one also needs a checkout."""
        if not os.path.exists(SCRIPT):
            raise RunError(f"there is no {SCRIPT} in this folder: run this in a checkout of the repository")
        super().require_tool()

    def specification(self, job: Job) -> Specification:
        """A call of the script."""
        assert self.hardware
        options = self.options
        where = {"name": options.name, "zone": options.zone, "project": options.project}
        flags = [f"--{flag}={value}" for flag, value in where.items() if value]
        flags += ["--spot"] * options.spot
        flags += [f"--mount={mount.removeprefix('gs://')}" for mount in options.mount if not mount.startswith("/")]
        flags += options.engine_flag
        return Specification((SCRIPT, "run", "--retry", *flags, f"--type={self.hardware.tpu_type}", "--", *job.words))
