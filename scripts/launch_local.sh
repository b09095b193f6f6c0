#!/usr/bin/env bash
# Trains with several processes on this machine, which talk over the loopback, as a cluster does.
#
# Usage: scripts/launch_local.sh N [--dry_run] -- TRAIN_ARG ...
#   PYTHON=python3.12   the Python that trains (default: that of scripts/setup.sh, else python3)
#   PORT=12345          where process 0 listens (default: a free one)
#
# On the CPU, unless JAX_PLATFORMS is set. Each line carries its process's number. SIGINT and SIGTERM make
# all processes save and end; a second one kills them. If one fails, all are ended, and its exit code is the script's.
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

fail() { printf 'launch_local: %s\n' "$*" >&2; exit 2; }

case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
processes=${1:-}
[[ $processes =~ ^[1-9][0-9]*$ ]] ||
  fail "the number of processes is '$processes'; usage: scripts/launch_local.sh N -- TRAIN_ARG ..."
shift
dry_run=
if [[ ${1:-} == --dry_run ]]; then dry_run=yes; shift; fi
[[ ${1:-} == -- ]] || fail "expected -- before training's arguments, not '${1:-}'"
shift
(($#)) || fail "nothing to run: put training's arguments after --, such as --config=configs/quickstart_text.py"

venv=${VENV:-.venv}
if [[ $venv != /* ]]; then venv=$root/$venv; fi
python=${PYTHON:-$venv/bin/python}
if [[ -z ${PYTHON:-} && ! -x $python ]]; then python=python3; fi
command -v "$python" >/dev/null || fail "no Python runs as '$python': run scripts/setup.sh, or set PYTHON"

export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
# Threads of the CPU client: with fewer than the devices of a process need, they wait for each other forever.
export PJRT_NPROC=${PJRT_NPROC:-16}

# Ports below 32768, where Linux's own choices begin. A port that answers is in use.
port=${PORT:-}
while [[ -z $port ]]; do
  port=$((20000 + RANDOM % 12000))
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then port=; fi
done

command_of() {  # process $1; the rest are training's arguments
  arguments=("$python" -m gmlp_flax.train "${@:2}"
    --multihost=on --coordinator="127.0.0.1:$port" --processes="$processes" --process="$1")
}

if [[ -n $dry_run ]]; then
  for ((i = 0; i < processes; i++)); do
    command_of "$i" "$@"
    printf 'JAX_PLATFORMS=%s PJRT_NPROC=%s' "$JAX_PLATFORMS" "$PJRT_NPROC"
    printf ' %q' "${arguments[@]}"
    printf '\n'
  done
  exit 0
fi

prefix() {
  local line
  while IFS= read -r line || [[ -n $line ]]; do printf '[%s] %s\n' "$1" "$line"; done
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
running=() prefixing=() asked='' code=0

pass_on() {
  local process
  for process in ${running[@]+"${running[@]}"}; do
    if [[ -z $asked ]]; then
      kill -TERM "$process" 2>/dev/null || true
    else
      kill -KILL -- "-$process" 2>/dev/null || true
    fi
  done
  asked=yes
}
trap pass_on INT TERM

# Job control gives each process a group of its own: Ctrl-C then reaches it once, through this script.
set -m
for ((i = 0; i < processes; i++)); do
  command_of "$i" "$@"
  mkfifo "$scratch/$i"
  prefix "$i" <"$scratch/$i" &
  prefixing+=($!)
  "${arguments[@]}" </dev/null >"$scratch/$i" 2>&1 &
  running+=($!)
done

# Looks often, because older shells cannot wait for whichever process ends first.
grace=${GRACE:-10} kill_at=
while ((${#running[@]})); do
  left=()
  for process in "${running[@]}"; do
    if kill -0 "$process" 2>/dev/null; then left+=("$process"); continue; fi
    ended=0
    wait "$process" || ended=$?
    if ((ended != 0 && code == 0)); then
      code=$ended
      printf 'launch_local: a process ended with code %s\n' "$ended" >&2
    fi
  done
  running=(${left[@]+"${left[@]}"})
  # A process that lost another cannot save; it gets a moment to say so.
  if ((code != 0)) && [[ -z $kill_at ]]; then
    kill_at=$((SECONDS + grace))
    if [[ -z $asked ]]; then pass_on; fi
  fi
  if [[ -n $kill_at ]] && ((SECONDS >= kill_at)); then pass_on; fi
  sleep 0.1
done
wait "${prefixing[@]}" || true
exit "$code"
