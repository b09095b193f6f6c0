#!/usr/bin/env bash
# Trains on a slice of Cloud TPUs, from this machine, with gcloud. docs/clusters.md goes through it step by step.
#
# Usage: scripts/launch_tpu.sh COMMAND --name=NAME --zone=ZONE [OPTION ...] [-- TRAIN_ARG ...]
#
#   create   ask for the slice and wait until it is there        needs --type
#   setup    copy this checkout to all workers and install it    --extras=tpu,gcs --mount=BUCKET:/FOLDER
#   run      start python -m gmlp_flax.train TRAIN_ARG ... on all workers; it goes on when the connection ends
#   run --retry   the same, and stay: whenever the slice is missing or preempted, delete, create, setup and run again
#   logs     follow a worker's log                               --worker=0
#   status   the state of the slice, and whether each worker trains
#   stop     SIGTERM to all workers, which save and end, and wait for that
#   delete   give the slice back: it costs money until then
#
#   --name --zone --project --type --runtime   or TPU_NAME, TPU_ZONE, TPU_PROJECT, TPU_TYPE, TPU_RUNTIME
#   --type=TYPE         v5litepod-64, v4-32, v5p-128, v6e-16, ...; the runtime version follows from it
#   --queued, --direct  wait in the queue for capacity, or take it now or fail; slices of several hosts and --spot wait
#   --spot              cheaper, and may be preempted
#   --create_flag=FLAG  one more flag for gcloud's create, such as --create_flag=--reserved; may be given again
#   --extras=LIST       extras of setup.cfg, with commas (default: tpu,gcs)
#   --mount=B:/F        show the bucket B as the folder /F on every worker; may be given again
#   --interval=SECONDS  between two looks while waiting (default: 60)
#   --dry_run           print the commands, run none
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
worker_script=gmlp_flax/scripts/tpu_worker.sh  # from the home folder there
failures_allowed=3
archive=gmlp_flax.tar.gz scratch=''

say() { printf 'launch_tpu: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

# Words as one line that any POSIX shell reads back; only bash reads the output of printf %q.
quote() {
  local word line='' single="'" escaped="'\\''"
  for word in "$@"; do
    if [[ ! $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then word="'${word//$single/$escaped}'"; fi
    line="$line${line:+ }$word"
  done
  printf '%s' "$line"
}

# Every call of gcloud goes through here, so that --dry_run prints exactly the commands that would run.
call() { if [[ -n $dry_run ]]; then printf '%s\n' "$(quote gcloud "$@")"; else gcloud "$@"; fi; }
node() { call compute tpus tpu-vm "$1" "$name" "${where[@]}" "${@:2}"; }
request() { call compute tpus queued-resources "$1" "$name" "${where[@]}" "${@:2}"; }
on_workers() { node ssh --worker="$1" --command="$(quote bash "$worker_script" "${@:2}")"; }
note() { if [[ -n $dry_run ]]; then printf '# %s\n' "$*"; fi; }

parse() {
  command=${1:-}
  name=${TPU_NAME:-} zone=${TPU_ZONE:-} project=${TPU_PROJECT:-} type=${TPU_TYPE:-} runtime=${TPU_RUNTIME:-}
  queued='' spot='' retry='' dry_run='' extras=tpu,gcs worker=0 interval=60
  create_flags=() mounts=() train=()
  shift || true
  while (($#)); do
    case $1 in
      --name=* | --zone=* | --project=* | --type=* | --runtime=* | --extras=* | --worker=* | --interval=*)
        local key=${1%%=*}
        printf -v "${key#--}" '%s' "${1#*=}" ;;
      --queued) queued=yes ;;
      --direct) queued=no ;;
      --spot | --retry | --dry_run) printf -v "${1#--}" yes ;;
      --create_flag=*) create_flags+=("${1#*=}") ;;
      --mount=*) mounts+=("${1#*=}") ;;
      --) shift; train=("$@"); break ;;
      *) fail "unknown option '$1'; scripts/launch_tpu.sh --help lists them (training's own go after --)" ;;
    esac
    shift
  done
}

check() {
  local needs_type='' mount
  case $command in
    create | status | delete) needs_type=yes ;;
    setup | run | logs | stop) needs_type=$retry ;;
    *) fail "the command is '$command'; expected create, setup, run, logs, status, stop or delete" ;;
  esac
  [[ $name =~ ^[a-z]([a-z0-9-]*[a-z0-9])?$ ]] ||
    fail "--name is '$name'; expected lower-case letters, digits and hyphens, such as --name=my-run (or TPU_NAME)"
  [[ -n $zone ]] || fail "--zone is missing, such as --zone=us-central1-a (or TPU_ZONE)"
  if [[ $command == run ]]; then
    ((${#train[@]})) ||
      fail "nothing to run: put training's arguments after --, as in run --name=my-run -- --config=x.py"
  elif ((${#train[@]})) || [[ -n $retry ]]; then
    fail "--retry, and arguments after --, are for run"
  fi
  [[ $interval =~ ^[0-9]+$ ]] || fail "--interval is '$interval'; expected seconds"
  [[ $worker =~ ^[0-9]+$ ]] || fail "--worker is '$worker'; expected a number from 0"
  for mount in ${mounts[@]+"${mounts[@]}"}; do
    [[ $mount =~ ^[^/:]+:/[^/].*$ ]] || fail "--mount is '$mount'; expected BUCKET:/FOLDER, without gs://"
  done
  if [[ -n $needs_type ]]; then choose; fi
  if [[ -z $dry_run ]] && ! command -v gcloud >/dev/null; then
    fail "there is no gcloud on PATH: see https://cloud.google.com/sdk/docs/install"
  fi
  where=(--zone="$zone")
  if [[ -n $project ]]; then where+=(--project="$project"); fi
}

# The runtime version and whether to queue, from the type unless they were given.
choose() {
  [[ $type =~ ^[a-z0-9]+-[0-9]+$ ]] ||
    fail "--type is '$type'; expected an accelerator type such as v5litepod-64, v4-32, v5p-128 or v6e-16 (or TPU_TYPE)"
  if [[ -z $runtime ]]; then
    case $type in
      v2-* | v3-* | v4-*) runtime=tpu-ubuntu2204-base ;;
      v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
      v5p-*) runtime=v2-alpha-tpuv5 ;;
      v6e-*) runtime=v2-alpha-tpuv6e ;;
      v5e-*) fail "--type is '$type'; Cloud calls it v5litepod-${type#*-}" ;;
      *) fail "no runtime is known for --type=$type: give --runtime; see gcloud compute tpus tpu-vm versions list" ;;
    esac
  fi
  # One host has at most 8 cores or chips, whatever the type.
  if [[ -z $queued ]]; then
    queued=no
    if [[ -n $spot ]] || ((${type#*-} > 8)); then queued=yes; fi
  fi
}

create() {
  local flags=(--accelerator-type="$type")
  if [[ -n $spot ]]; then flags+=(--spot); fi
  if ((${#create_flags[@]})); then flags+=("${create_flags[@]}"); fi
  if [[ $queued == yes ]]; then
    request create --node-id="$name" --runtime-version="$runtime" "${flags[@]}"
    await
  else
    node create --version="$runtime" "${flags[@]}"
  fi
}

describe_request() { request describe --format='value(state.state)'; }
describe_node() { node describe --format='value(state)'; }

# Runs one of the two above: a state, MISSING if nothing has that name, UNKNOWN if no answer came.
state_of() {
  local printed
  if printed=$("$1" 2>&1); then
    grep -xE '[A-Z_]+' <<<"$printed" || printf UNKNOWN  # gcloud may speak of updates, too
  elif [[ $printed == *NOT_FOUND* ]]; then
    printf MISSING
  else
    say "${printed##*$'\n'}"
    printf UNKNOWN
  fi
}

# The state of the slice: READY, or why not. A request whose node is gone is LOST; unlike MISSING, it must be deleted.
look() {
  local state
  if [[ $queued == yes ]]; then
    state=$(state_of describe_request)
    if [[ $state != ACTIVE ]]; then printf '%s' "$state"; return; fi
    state=$(state_of describe_node)
    if [[ $state == MISSING ]]; then state=LOST; fi
  else
    state=$(state_of describe_node)
  fi
  printf '%s' "$state"
}

await() {
  local state last=''
  if [[ -n $dry_run ]]; then
    note "every $interval s, until ACTIVE and READY:"
    describe_request
    describe_node
    return
  fi
  while state=$(look); [[ $state != READY ]]; do
    case $state in
      FAILED | SUSPENDED | MISSING | LOST | PREEMPTED | TERMINATED)
        say "the request for $name is $state: quota, or a type the zone does not have? then delete it and ask anew"
        return 1 ;;
    esac
    if [[ $state != "$last" ]]; then say "$name is $state (Ctrl-C ends the wait, not the request: delete does)"; fi
    last=$state
    sleep "$interval"
  done
}

# The files that git knows or would add: no environment, no runs. Deleted files that are still listed are left out.
pack() {
  cd -- "$root"
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done |
    tar -czf "$1" --null -T -
}

# Packs once: after a preemption a run goes on with the code that it began with, whatever is edited here meanwhile.
archived() {
  if [[ -n $scratch ]]; then return; fi
  git -C "$root" rev-parse >/dev/null 2>&1 || fail "$root is no git checkout: clone the repository"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  (pack "$scratch/$archive")
}

setup() {
  local mount
  if [[ -n $dry_run ]]; then
    note "$archive: the files here that git knows of or would add"
  else
    archived
    cd -- "$scratch"
  fi
  call compute tpus tpu-vm scp "$archive" "$name:" "${where[@]}" --worker=all
  cd -- "$root"
  # shellcheck disable=SC2086 # extras are names: none needs quotes
  node ssh --worker=all --command="mkdir -p gmlp_flax && tar -xzf $archive -C gmlp_flax && $(
    quote bash "$worker_script" install ${extras//,/ })"
  for mount in ${mounts[@]+"${mounts[@]}"}; do
    on_workers all mount "${mount%%:*}" "${mount#*:}"
  done
}

run() {
  if [[ -z $retry ]]; then on_workers all start "${train[@]}"; return; fi
  if [[ -z $dry_run ]]; then watch; return; fi
  on_workers all start "${train[@]}"
  note "every $interval s:"
  status
  note "where the slice is missing or preempted (only what is there is deleted), and run again:"
  delete
  create
  setup
  on_workers all start "${train[@]}"
}

# Makes a slice that is gone anew. Its parts end it at once if they fail, as elsewhere: `if make_again` would not.
make_again() {
  if [[ $1 != MISSING ]]; then delete; fi
  create
  setup
}

# Trains to the end, over preemptions. Called again, it goes on watching the run.
watch() {
  local state training last='' begun='' known='' failures=0 code started=0
  while :; do
    state=$(look)
    case $state in
      PREEMPTED | TERMINATED | SUSPENDED | FAILED | LOST | MISSING)
        say "$name is $state: making it again"
        archived
        set +e
        (set -e; trap - EXIT; make_again "$state")
        code=$?
        set -e
        # A slice that never was may be a mistake; one that was there comes back once there is room for it.
        if ((code)) && [[ $state == MISSING && -z $known ]]; then exit "$code"; fi
        if ((code)); then sleep "$interval"; fi
        begun='' known=yes
        continue ;;
      READY) training=$(judge "$(on_workers all status 2>/dev/null || true)") ;;
      *) training="not looked at: the slice is $state" ;;
    esac
    if [[ -z $begun && $state == READY ]]; then
      if [[ $training == silent ]]; then setup; fi
      if [[ $training != running ]]; then
        on_workers all start "${train[@]}" || true
        training=started started=$SECONDS
      elif grep 'with other arguments' <<<"$(on_workers all same "${train[@]}" 2>&1)" >&2; then
        fail "$name trains another run: stop it first, or give another --name"
      fi
      begun=yes known=yes
    fi
    case $training in
      mistake) say "training ended with code 2, a mistake in its arguments: see logs"; exit 2 ;;
      halted) say "training was stopped by hand: the same command goes on with it"; return ;;
      finished) if [[ $last == finished ]]; then say "training has ended on all workers"; return; fi ;;
      stopped)  # by a signal of the machine, as before a preemption or its maintenance
        on_workers all start "${train[@]}" || true
        training="stopped by its machine, and started again" started=$SECONDS ;;
      failed | fresh)
        if ((SECONDS - started > 3600)); then failures=0; fi
        failures=$((failures + 1))
        if ((failures > failures_allowed)); then say "training failed $failures times: see logs"; exit 1; fi
        on_workers all stop || true
        on_workers all start "${train[@]}" || true
        training="failed, and started again ($failures of $failures_allowed)" started=$SECONDS ;;
    esac
    if [[ $training != "$last" ]]; then say "training: $training"; fi
    last=$training
    sleep "$interval"
  done
}

# One word that sums up the status lines of all workers.
judge() {
  local lines ended
  lines=$(grep ': training ' <<<"$1" || true)
  ended=$(grep -vE 'code (0|75)$' <<<"$lines" | grep 'ended with code' || true)
  if [[ -z $lines ]]; then
    echo silent
  elif grep -q 'stopped by hand' <<<"$lines"; then
    echo halted
  elif [[ -n $ended ]]; then
    # Every worker makes the same mistake; a worker that only lost another one may also end with this code.
    if grep -qv 'code 2$' <<<"$lines"; then echo failed; else echo mistake; fi
  elif grep -q 'training running' <<<"$lines"; then
    echo running
  elif grep -q 'not started' <<<"$lines"; then
    echo fresh
  elif grep -q 'code 75$' <<<"$lines"; then
    echo stopped
  else
    echo finished
  fi
}

status() {
  if [[ $queued == yes ]]; then describe_request; fi
  describe_node
  on_workers all status
}

delete() {
  if [[ $queued == yes ]]; then request delete --force --quiet; else node delete --quiet; fi
}

logs() { on_workers "$worker" log; }
stop() { on_workers all stop; }

for word in "$@"; do
  case $word in
    --) break ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  esac
done
parse "$@"
check
"$command"
