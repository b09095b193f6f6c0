"""GPU nodes under SLURM: a batch script that goes back into the queue when its time is over, given to sbatch."""

import sys

from gmlp_flax.errors import RunError
from gmlp_flax.launching.engine import TRAIN, Engine, Job, quoted
from gmlp_flax.planning.chips import CHIPS

# JAX finds its cluster in SLURM's variables, and gives each process the GPU of its number on the node: all GPUs must be
# visible to all of them, which --gpus-per-node does and --gpus-per-task would not.
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
OURS = ("--nodes", "--ntasks", "--gpus", "--gres")


class Slurm(Engine):
    """One process per GPU, on one node or several."""

    summary = "GPU nodes under SLURM, from the login node"
    tool, install, suffix = "sbatch", "run this on the cluster's login node", ".sbatch"
    optional = ("gpus_per_node", "engine_flag")
    kinds = tuple(kind for kind, chip in CHIPS.items() if chip.node)
    shares_disks = True

    def specification(self, job: Job) -> tuple[list[str], str]:
        """A batch script."""
        if ours := [flag for flag in self.options.engine_flag if flag.startswith(OURS)]:
            raise RunError(f"--engine_flag={ours[0]}: it follows from --topology and --gpus_per_node")
        nodes, gpus = self.nodes()
        command = quoted([sys.executable, *TRAIN, *job.words, "--multihost=on"])
        script = SCRIPT.format(name=job.name, nodes=nodes, gpus=gpus, command=command)
        return ["sbatch", *self.options.engine_flag], script
