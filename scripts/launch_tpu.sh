#!/usr/bin/env bash
# Trains on one slice of Cloud TPUs, from this machine, with gcloud: docs/c4-on-tpu.md goes through it step by step. Nothing
# is started again after a preemption or a failure; `gmlp launch --on=xpk` and `--on=skypilot` do that.
#
# Usage: TPU_NAME=my-run TPU_ZONE=us-central1-a TPU_TYPE=v5litepod-64 scripts/launch_tpu.sh COMMAND [ARGUMENT ...]
#   create [FLAG ...]    asks for the slice (FLAG: gcloud's own, such as --spot) and waits until it is there
#   setup [EXTRA ...]    copies this checkout to all workers and installs it with extras of setup.cfg (default: tpu gcs)
#   train ARGUMENT ...   starts `gmlp train ARGUMENT ...` on all workers; it continues when the connection ends
#   logs [WORKER]        follows the log of a worker (default: 0)
#   stop                 SIGTERM to all workers, which save and end, and waits for that
#   delete               gives the slice back: it costs money until then
# TPU_PROJECT and TPU_RUNTIME replace gcloud's project and the runtime version that follows from TPU_TYPE.
set -euo pipefail
unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

fail() { printf 'launch_tpu: %s\n' "$*" >&2; exit 2; }
tpus() { gcloud compute tpus "$1" "$2" "$TPU_NAME" "${where[@]}" "${@:3}"; }
on_workers() { tpus tpu-vm ssh --worker="$1" --command="$2"; }  # gcloud takes the command as one word

create() {
  local state runtime=${TPU_RUNTIME:-}
  [[ -n ${TPU_TYPE:-} ]] || fail "set TPU_TYPE, such as v5litepod-64, v4-32, v5p-128 or v6e-16"
  case $TPU_TYPE in
    v5e*) fail "TPU_TYPE=$TPU_TYPE: gcloud calls a v5e v5litepod-CHIPS, such as v5litepod-64 for v5e:8x8" ;;
    v[234]-*) runtime=${runtime:-tpu-ubuntu2204-base} ;;
    v5litepod-*) runtime=${runtime:-v2-alpha-tpuv5-lite} ;;
    v5p-*) runtime=${runtime:-v2-alpha-tpuv5} ;;
    v6e-*) runtime=${runtime:-v2-alpha-tpuv6e} ;;
  esac
  [[ -n $runtime ]] || fail "set TPU_RUNTIME for TPU_TYPE=$TPU_TYPE: see gcloud compute tpus tpu-vm versions list"
  tpus queued-resources create --node-id="$TPU_NAME" --runtime-version="$runtime" --accelerator-type="$TPU_TYPE" "$@"
  while state=$(tpus queued-resources describe --format='value(state.state)'); [[ $state != ACTIVE ]]; do
    case $state in FAILED | SUSPENDED) fail "$TPU_NAME is $state: quota, or a type that the zone lacks? delete it" ;; esac
    printf '%s: %s is %s\n' "$(date +%T)" "$TPU_NAME" "$state"  # Ctrl-C ends the wait, delete the request
    sleep "${TPU_INTERVAL:-60}"
  done
  printf '%s: %s is ACTIVE\n' "$(date +%T)" "$TPU_NAME"
}

setup() {
  # The files that git knows or would add: no environment, no runs. The images have Python 3.10 or older; uv brings its own.
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done |
    tar -czf "$scratch/gmlp_flax.tar.gz" --null -T -
  gcloud compute tpus tpu-vm scp "$scratch/gmlp_flax.tar.gz" "$TPU_NAME:" "${where[@]}" --worker=all
  (($#)) || set -- tpu gcs
  on_workers all "mkdir -p gmlp_flax && tar -xzf gmlp_flax.tar.gz -C gmlp_flax && export PATH=\$HOME/.local/bin:\$PATH &&
    curl -LsSf https://astral.sh/uv/install.sh | sh && uv python install 3.12 &&
    PYTHON=\$(uv python find 3.12) gmlp_flax/scripts/setup.sh $*"
}

train() {
  (($#)) || fail "train needs training's arguments, such as --config=c4_bert:gmlp_base --workdir=gs://BUCKET/FOLDER"
  # Without a TPU this fails instead of training on the CPU.
  on_workers all "cd gmlp_flax && test -x .venv/bin/python || { echo 'run setup first' >&2; exit 1; }
    if kill -0 \$(cat train.pid) 2>/dev/null; then echo 'training runs already: stop it first' >&2; exit 1; fi
    export JAX_PLATFORMS=tpu,cpu
    nohup .venv/bin/python -m gmlp_flax.train$(printf ' %q' "$@") --multihost=on </dev/null >>train.log 2>&1 &
    echo \$! >train.pid"
  echo "training has started on all workers: $0 logs"
}

logs() { on_workers "${1:-0}" 'tail -n 100 -F gmlp_flax/train.log'; }
stop() { on_workers all "process=\$(cat gmlp_flax/train.pid); kill \$process; while kill -0 \$process; do sleep 1; done 2>/dev/null"; }
delete() { tpus queued-resources delete --force --quiet; }

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
case ${1:-} in
  create | setup | train | logs | stop | delete) ;;
  -h | --help | help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
[[ -n ${TPU_NAME:-} && -n ${TPU_ZONE:-} ]] || fail "set TPU_NAME and TPU_ZONE, such as my-run and us-central1-a"
where=(--zone="$TPU_ZONE" ${TPU_PROJECT:+--project="$TPU_PROJECT"})
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
"$@"
