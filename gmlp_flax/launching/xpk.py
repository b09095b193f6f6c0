"""TPUs of a Google Kubernetes Engine cluster: a command of XPK, which queues the run, joins slices, and restarts it."""

from gmlp_flax.launching.engine import CLOUD_NAMES, STOPPED, TRAIN, Engine, Job, quoted

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
    unavailable = ("v5e:2x2",)
    remote = joins_slices = True

    def specification(self, job: Job) -> tuple[list[str], str]:
        """An `xpk workload create`. Kubernetes would read a dollar of the training command before bash does."""
        options, hardware = self.options, self.hardware
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
            "command": quoted(words, unsafe="$"),
        }
        own = [f"--{flag}={value}" for flag, value in flags.items()]
        return ["xpk", "workload", "create", *own, *["--spot"] * options.spot, *options.engine_flag], ""
