"""Any cloud by SkyPilot: a task file for a managed job, which finds machines, and others when they are taken away."""

from __future__ import annotations

import os

import yaml

from gmlp_flax.errors import RunError
from gmlp_flax.launching.engine import STOPPED, TRAIN, Engine, Job, Specification, quoted

# Kind -> SkyPilot's name.
GPUS = {
    "gpu:a100": "A100-80GB",
    "gpu:a100-40gb": "A100",
    "gpu:h100": "H100",
    "gpu:h200": "H200",
    "gpu:b200": "B200",
}
TPUS = ("v2", "v3", "v4", "v5e", "v5p", "v6e")
RUNTIMES = {"v5e": "v2-alpha-tpuv5-lite"}  # where SkyPilot 0.14 would take that of another kind
SETUP = "scripts/setup.sh"
# The images of TPU VMs have Python 3.10 or older; uv brings its own.
INSTALL = (
    "curl -LsSf https://astral.sh/uv/install.sh | sh && export PATH=$HOME/.local/bin:$PATH && "
    f"uv python install 3.12 && PYTHON=$(uv python find 3.12) {SETUP}"
)
# The nodes of a GPU cluster find each other through SkyPilot's variables. Hosts of a TPU slice know of each other.
JOINING = (
    '--coordinator="$(head -n 1 <<<"$SKYPILOT_NODE_IPS"):8476" --processes="$SKYPILOT_NUM_NODES" '
    '--process="$SKYPILOT_NODE_RANK"'
)


class SkyPilot(Engine):
    """A managed job, in containers of an image or on machines where this checkout is installed."""

    summary = "machines of any cloud, found by SkyPilot, also spot machines with recovery"
    tool = "sky"
    install = "pipx install 'skypilot[gcp]', in an environment of its own, or pip install 'gmlp_flax[sky]'"
    optional = ("gpus_per_node", "infra", "image", "mount", "spot", "engine_flag")
    kinds = (*TPUS, *GPUS)
    remote = mounts_buckets = True

    def specification(self, job: Job) -> Specification:
        """A task file, and the command that takes it."""
        assert self.hardware
        options, of_tpus = self.options, self.hardware.kind in TPUS
        nodes, gpus = (1, 0) if of_tpus else self.hardware.nodes(options.gpus_per_node)
        name = f"tpu-{self.hardware.tpu_type}" if of_tpus else f"{GPUS[self.hardware.kind]}:{gpus}"
        task = {
            "name": job.name,
            "num_nodes": nodes,
            "resources": {
                **({"infra": options.infra} if options.infra else {}),
                "accelerators": name,
                **(
                    {"accelerator_args": {"runtime_version": runtime}}
                    if (runtime := RUNTIMES.get(self.hardware.kind))
                    else {}
                ),
                "use_spot": options.spot,
                "job_recovery": {"max_restarts_on_errors": 3, "recover_on_exit_codes": [STOPPED]},
            },
            "file_mounts": self._mounts(),
            **self._installed(of_tpus),
        }
        text = yaml.safe_dump({key: value for key, value in task.items() if value}, sort_keys=False, width=1000)
        text += f"run: |\n  {self._command(job, of_tpus, several=nodes > 1)}\n"  # a block needs no more quotes
        return Specification(("sky", "jobs", "launch", "--yes", "--async", *options.engine_flag), text, ".yaml")

    def _mounts(self) -> dict[str, dict[str, str]]:
        named = [mount.rpartition(":") for mount in self.options.mount if not mount.startswith("/")]
        sources = {folder: bucket if "://" in bucket else f"gs://{bucket}" for bucket, _, folder in named}
        return {folder: {"source": source, "mode": "MOUNT"} for folder, source in sources.items()}

    def _installed(self, of_tpus: bool) -> dict[str, str]:
        """Where there is no image: this checkout is copied, and installed."""
        if self.options.image:
            return {}
        if not os.path.exists(SETUP):
            advice = "run this in a checkout of the repository, or give --image"
            raise RunError(f"there is no {SETUP} in this folder: {advice}")
        return {"workdir": ".", "setup": f"{INSTALL} {'tpu' if of_tpus else 'cuda'} gcs"}

    def _command(self, job: Job, of_tpus: bool, several: bool) -> str:
        """Training on each machine. Its container, if any, reaches the host's network, devices and mounted folders."""
        platforms = f"JAX_PLATFORMS={'tpu,cpu' if of_tpus else 'cuda,cpu'}"
        words = quoted([*TRAIN, *job.words, f"--stopped_code={STOPPED}"])
        joining = f" {JOINING}" if several else " --multihost=on" if of_tpus else ""
        if not self.options.image:
            return f"exec env {platforms} .venv/bin/python {words}{joining}"
        folders = [mount.rpartition(":")[2] for mount in self.options.mount]
        volumes = "".join(f" --volume={quoted([f'{folder}:{folder}'])}" for folder in folders)
        gpus = "" if of_tpus else " --gpus=all"
        return (
            f"exec sudo docker run --rm --init --network=host --privileged --shm-size=16g{gpus} "
            f'--user="$(id -u):$(id -g)" --env=HOME=/tmp --env={platforms}{volumes} '
            f"{quoted([self.options.image])} python {words}{joining}"
        )
