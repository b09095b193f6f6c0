#!/usr/bin/env bash
# scripts/launch_tpu.sh runs this on every worker of a TPU slice.
#
# Usage: scripts/tpu_worker.sh install EXTRA ...     a Python, then .venv/ with the extras
#        scripts/tpu_worker.sh mount BUCKET FOLDER   shows a bucket as a folder, by gcsfuse
#        scripts/tpu_worker.sh start TRAIN_ARG ...   trains, and goes on when the connection ends
#        scripts/tpu_worker.sh same TRAIN_ARG ...    whether what trains was started with these
#        scripts/tpu_worker.sh status | stop | log   whether it trains; SIGTERM, and wait; follow the log
# The log, the process id and the exit code of the training are in ~/gmlp_flax_training/.
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
records=$HOME/gmlp_flax_training
python=$root/.venv/bin/python

fail() { printf 'tpu_worker: %s\n' "$*" >&2; exit 2; }

install() {
  export PATH=$HOME/.local/bin:$PATH
  # The images of TPU VMs have Python 3.10 or older; uv brings its own, and installs faster.
  uv --version >/dev/null 2>&1 || curl -LsSf https://astral.sh/uv/install.sh | sh
  uv python install 3.12
  PYTHON=$(uv python find 3.12) "$root/scripts/setup.sh" "$@"
}

mount_bucket() {
  local bucket=$1 folder=$2
  if mountpoint -q "$folder"; then return; fi
  if ! command -v gcsfuse >/dev/null; then
    local key=/usr/share/keyrings/cloud.google.asc source=https://packages.cloud.google.com/apt
    curl -fsSL $source/doc/apt-key.gpg | sudo tee $key >/dev/null
    echo "deb [signed-by=$key] $source gcsfuse-$(lsb_release -cs) main" |
      sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
    sudo apt-get -qq update
    sudo apt-get -qq install -y gcsfuse
  fi
  sudo mkdir -p "$folder"
  sudo chown "$(id -u):$(id -g)" "$folder"
  # A checkpoint is a folder that is renamed once it is whole; by default gcsfuse refuses that. Without a cache of names
  # each worker sees the files of the others at once.
  gcsfuse --implicit-dirs --rename-dir-limit=1000000 --metadata-cache-ttl-secs=0 "$bucket" "$folder"
}

# Whether the process that was started still trains. After a restart its number may belong to another process.
trains() {
  local process
  process=$(cat "$records/pid" 2>/dev/null) && [[ -n $process ]] &&
    [[ $(ps -ww -p "$process" -o args= 2>/dev/null) == *gmlp_flax.train* ]]
}

start() {
  [[ -x $python ]] || fail "there is no $python on $(hostname): run setup first"
  if trains; then fail "training runs already on $(hostname): stop it first"; fi
  mkdir -p "$records"
  rm -f "$records/pid" "$records/code" "$records/stopped"
  summed "$@" >"$records/arguments"
  cd -- "$root"
  printf '== %s: %s\n' "$(date -u +%FT%TZ)" "$*" >>"$records/log"
  nohup bash "$root/scripts/tpu_worker.sh" supervise "$@" </dev/null >>"$records/log" 2>&1 &
  for _ in {1..100}; do
    if trains || [[ -s $records/code ]]; then break; fi
    sleep 0.1
  done
  status
}

summed() { printf '%s\0' "$@" | cksum; }

same() {
  if trains && [[ -s $records/arguments && $(summed "$@") != "$(cat "$records/arguments")" ]]; then
    fail "$(hostname) trains with other arguments"
  fi
}

# Runs the training, and writes down how it ended.
supervise() {
  local code=0 process
  # A machine that shuts down signals everything: this shell has to outlive the training, which then saves.
  trap : TERM INT HUP
  # Without a TPU this fails instead of training on the CPU.
  JAX_PLATFORMS=${JAX_PLATFORMS-tpu,cpu} "$python" -m gmlp_flax.train "$@" --multihost=on --stopped_code=75 &
  process=$!
  echo "$process" >"$records/pid"
  wait "$process" || code=$?
  while kill -0 "$process" 2>/dev/null; do  # a signal ended the wait, not the training
    code=0
    wait "$process" || code=$?
  done
  echo "$code" >"$records/code"
}

status() {
  local says='not started'
  if trains; then
    says="running, process $(cat "$records/pid")"
  elif [[ -e $records/stopped ]]; then
    says='stopped by hand'
  elif [[ -s $records/code ]]; then
    says="ended with code $(cat "$records/code")"
  elif [[ -e $records/log ]]; then
    says='ended with code unknown (a restart of the machine?)'
  fi
  printf '%s: training %s\n' "$(hostname)" "$says"
}

stop() {
  if trains; then touch "$records/stopped"; fi
  if trains; then kill -TERM "$(cat "$records/pid")"; fi
  # Time enough for a step and a checkpoint; a process that takes longer hangs.
  local tenths=0
  while trains; do
    if ((tenths == 3000)); then kill -KILL "$(cat "$records/pid")" 2>/dev/null || true; fi
    sleep 0.1
    tenths=$((tenths + 1))
  done
  # The shell that supervises writes the code a moment after the end.
  for _ in 1 2 3 4 5; do [[ -s $records/code ]] || sleep 0.1; done
  status
}

case ${1:-} in
  install | start | same | supervise | status | stop) "$@" ;;
  mount) mount_bucket "$2" "$3" ;;
  log) exec tail -n 100 -F "$records/log" ;;
  -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" ;;
  *) fail "unknown command '${1:-}'; expected install, mount, start, same, status, stop or log" ;;
esac
