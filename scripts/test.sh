#!/usr/bin/env bash
# Runs the tests on the CPU. It uses the environment that scripts/setup.sh makes.
#
# Usage: scripts/test.sh [--all | --nightly] [PYTEST ARGUMENT ...]   e.g. scripts/test.sh -m smoke, scripts/test.sh tests/models
# Without options it skips the tests marked `slow` (whole runs, and what takes a second or more) and those marked
# `nightly` (browsers, long fuzzing, slow tests repeated with further inputs or in a bucket). --all adds the slow ones, as CI
# does for each change. --nightly adds both, as CI does once a day.
# -m EXPRESSION or a path under tests/ selects among all tests.
# There are two workers for each core, because tests also wait, but at most eight, and at most one for each 4 GB of free
# memory, where Linux says how much that is. -n 0 or -p no:xdist runs none.
# setup.sh explains PYTHON and VENV.
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

"$root/scripts/setup.sh" test

cd -- "$root"
parallel=yes selection="not slow and not nightly"
for arg in "$@"; do
  case $arg in
    -n* | --numprocesses* | no:xdist | -pno:xdist) parallel= ;;
    --all) selection="not nightly" ;;
    --nightly | -m* | tests/*) selection= ;;
  esac
  shift
  if [[ $arg != --all && $arg != --nightly ]]; then set -- "$@" "$arg"; fi
done
if [[ -n $selection ]]; then set -- -m "$selection" "$@"; fi
if [[ -n $parallel ]]; then
  workers=$(($(getconf _NPROCESSORS_ONLN) * 2))
  if [[ -r /proc/meminfo ]]; then
    fitting=$(awk '/^MemAvailable:/ { print int($2 / 4000000) }' /proc/meminfo)
    if ((workers > fitting)); then workers=$((fitting > 1 ? fitting : 1)); fi
  fi
  set -- -n "$workers" --maxprocesses 8 --dist worksteal "$@"
fi
export JAX_PLATFORMS=cpu
export PYTHONDONTWRITEBYTECODE=  # the bytecode of the tests, which pytest rewrites, is written once and read by every worker
python=${VENV:-.venv}/bin/python
# pip, which uv leaves out, and which the tests of the wheel use
"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null
failed=0
"$python" -m pytest "$@" || failed=$?
# What failed among the workers is run once more, alone: a test that passes then depends on what else the machine does.
if [[ $failed == 1 && -n $parallel ]]; then
  failures=.pytest_cache/v/cache/lastfailed
  before=$(cat "$failures")
  echo "test.sh: the tests that failed run once more, one after the other"
  failed=0
  "$python" -m pytest "$@" -n 0 --last-failed --last-failed-no-failures none || failed=$?
  after=$(cat "$failures" 2>/dev/null || echo '{}')
  "$python" -m tests.flaky "$before" "$after"
fi
exit $failed
