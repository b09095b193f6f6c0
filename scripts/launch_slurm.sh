#!/usr/bin/env bash
# Submits a training run to SLURM: one process per GPU, on one node or several.
#
# Usage: scripts/launch_slurm.sh --nodes=4 --gpus=8 [--dry_run] [SBATCH_OPTION ...] -- TRAIN_ARG ...
#   --nodes, --gpus      nodes, and GPUs on each
#   SBATCH_OPTION        any other option, such as --partition=long --time=24:00:00 --cpus-per-task=12; written with =
#   --dry_run            print the batch script and the command, submit nothing
#   PYTHON=python3.12    the Python that trains (default: that of scripts/setup.sh)
#
# Two minutes before its time is over the run saves, ends, and goes back into the queue. It also goes back when it fails
# (at most five times) and when a node fails. Each time it goes on from its newest checkpoint, so give it a --workdir
# that all nodes see. The log is slurm-JOB.log in the folder of submission. To end it: scancel --signal=TERM JOB saves,
# scancel JOB does not.
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

fail() { printf 'launch_slurm: %s\n' "$*" >&2; exit 2; }

nodes='' gpus='' dry_run=''
options=()
while (($#)); do
  case $1 in
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --nodes=*) nodes=${1#*=} ;;
    --gpus=*) gpus=${1#*=} ;;
    --dry_run) dry_run=yes ;;
    --) break ;;
    --ntasks* | --gpus-per-* | --gres=*) fail "${1%%=*} is not yours to give: it follows from --nodes and --gpus" ;;
    -*) options+=("$1") ;;
    *) fail "unexpected '$1'; write options as --name=value, and training's arguments after --" ;;
  esac
  shift
done
[[ ${1:-} == -- && $# -gt 1 ]] ||
  fail "nothing to run: put training's arguments after --, such as -- --config=configs/x.py"
shift
[[ $nodes =~ ^[1-9][0-9]*$ ]] || fail "--nodes is '$nodes'; expected the number of nodes"
[[ $gpus =~ ^[1-9][0-9]*$ ]] || fail "--gpus is '$gpus'; expected the number of GPUs on each node"
venv=${VENV:-.venv}
if [[ $venv != /* ]]; then venv=$root/$venv; fi
python=${PYTHON:-$venv/bin/python}
command -v "$python" >/dev/null || fail "no Python runs as '$python': run scripts/setup.sh cuda, or set PYTHON"

# JAX finds its cluster in SLURM's variables, and gives each process the GPU of its number on the node: all GPUs must be
# visible to all of them, which --gpus-per-node does and --gpus-per-task would not.
batch_script() {
  cat <<SCRIPT
#!/usr/bin/env bash
#SBATCH --job-name=gmlp_flax
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$gpus
#SBATCH --gpus-per-node=$gpus
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

# Only this shell gets the signal, and so it knows that the time is over, and not that the run is done.
over= again=yes
trap 'over=yes again=yes; scancel --signal=TERM "\$SLURM_JOB_ID"' USR1
srun --kill-on-bad-exit=1 \${SLURM_CPUS_PER_TASK:+--cpus-per-task="\$SLURM_CPUS_PER_TASK"} \\
 $(printf ' %q' "$python" -m gmlp_flax.train "$@" --multihost=on) &
while [ -n "\$again" ]; do  # a signal ends the wait, not the training
  again= code=0
  wait \$! || code=\$?
done
# Code 2 is a mistake in the arguments; trying again does not help.
if [ -n "\$over" ] || { [ "\$code" -ne 0 ] && [ "\$code" -ne 2 ] && [ "\${SLURM_RESTART_COUNT:-0}" -lt 5 ]; }; then
  scontrol requeue "\$SLURM_JOB_ID"
fi
exit "\$code"
SCRIPT
}

if [[ -n $dry_run ]]; then
  batch_script "$@"
  printf '# submitted by: sbatch%s\n' "$( ((${#options[@]} == 0)) || printf ' %q' "${options[@]}")"
  exit 0
fi
command -v sbatch >/dev/null || fail "there is no sbatch on PATH: run this on the cluster's login node"
batch_script "$@" | sbatch ${options[@]+"${options[@]}"}
