"""Any cloud by SkyPilot: a task file for a managed job, which finds machines, and others when they are taken away."""

import os

import yaml

from gmlp_flax.errors import RunError
from gmlp_flax.launching.engine import CLOUD_NAMES, STOPPED, TRAIN, Engine, Job, quoted

# Kind -> SkyPilot's name.
GPUS = {
    "gpu:a100": "A100-80GB",
    "gpu:a100-40gb": "A100",
    "gpu:h100": "H100",
    "gpu:h200": "H200",
    "gpu:b200": "B200",
    "gpu:l4": "L4",
    "gpu:rtx4090": "RTX4090",
}
TPUS = {"v2": 2, "v3": 2, "v4": 2, "v5e": 1, "v5p": 2, "v6e": 1}  # by how much a chip counts in the cloud's type
RUNTIMES = {"v5e": {"runtime_version": "v2-alpha-tpuv5-lite"}}  # where SkyPilot 0.14 would take that of another kind
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
    tool, suffix = "sky", ".yaml"
    install = "pipx install 'skypilot[gcp]', in an environment of its own, or pip install 'gmlp_flax[sky]'"
    optional = ("gpus_per_node", "infra", "image", "mount", "spot", "engine_flag")
    kinds = (*TPUS, *GPUS)
    remote = mounts_buckets = True

    def specification(self, job: Job) -> tuple[list[str], str]:
        """A task file, and the command that takes it."""
        options, kind = self.options, self.hardware.kind
        nodes, gpus = (1, 0) if kind in TPUS else self.nodes()
        if kind in TPUS:
            accelerators = f"tpu-{CLOUD_NAMES.get(kind, kind)}-{self.hardware.count * TPUS[kind]}"
        else:
            accelerators = f"{GPUS[kind]}:{gpus}"
        if not (options.image or os.path.exists(SETUP)):
            raise RunError(f"there is no {SETUP} here: run this in a checkout of the repository, or give --image")
        named = [mount.rpartition(":") for mount in options.mount if not mount.startswith("/")]
        sources = {folder: bucket if "://" in bucket else f"gs://{bucket}" for bucket, _, folder in named}
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
            "resources": {key: value for key, value in resources.items() if value not in ("", None)},
            "file_mounts": {folder: {"source": source, "mode": "MOUNT"} for folder, source in sources.items()},
            # Without an image this checkout is copied, and installed.
            "workdir": "" if options.image else ".",
            "setup": "" if options.image else f"{INSTALL} {'tpu' if kind in TPUS else 'cuda'} gcs",
        }
        text = yaml.safe_dump({key: value for key, value in task.items() if value}, sort_keys=False, width=1000)
        text += f"run: |\n  {self._command(job, kind in TPUS, several=nodes > 1)}\n"  # a block needs no more quotes
        return ["sky", "jobs", "launch", "--yes", "--async", *options.engine_flag], text

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
