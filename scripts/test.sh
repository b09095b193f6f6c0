#!/usr/bin/env bash
# Runs the tests on the CPU, in the environment that scripts/setup.sh makes.
#
# Usage: scripts/test.sh [--all] [PYTEST ARGUMENT ...]     e.g. scripts/test.sh -m smoke, scripts/test.sh tests/models
# Tests marked `slow`, whole runs above all, are left out unless --all, -m or a path under tests/ is given; CI runs all.
# Three workers for two cores, as tests also wait, at most eight (-n 0 or -p no:xdist: none). PYTHON and VENV are explained in setup.sh.
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

"$root/scripts/setup.sh" test

cd -- "$root"
parallel=yes quick=yes
for arg in "$@"; do
  case $arg in
    -n* | --numprocesses* | no:xdist | -pno:xdist) parallel= ;;
    --all | -m* | tests/*) quick= ;;
  esac
  shift
  if [[ $arg != --all ]]; then set -- "$@" "$arg"; fi
done
if [[ -n $quick ]]; then set -- -m "not slow" "$@"; fi
if [[ -n $parallel ]]; then set -- -n $((($(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2)) --maxprocesses 8 --dist worksteal "$@"; fi
export JAX_PLATFORMS=cpu
failed=0
"${VENV:-.venv}/bin/python" -m pytest "$@" || failed=$?
# What failed among the workers is run once more, alone: a test that passes then depends on what else the machine does.
if [[ $failed == 1 && -n $parallel ]]; then
  echo "test.sh: the tests that failed run once more, one after the other"
  failed=0
  "${VENV:-.venv}/bin/python" -m pytest "$@" -n 0 --last-failed --last-failed-no-failures none || failed=$?
fi
exit $failed
