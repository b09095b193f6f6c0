#!/usr/bin/env bash
# Trains a small gMLP on this machine's CPU, on data that comes with the repository.
#
# Usage: scripts/quickstart.sh [text|image] [ARGUMENT ...]      arguments go to `gmlp quickstart`
# Makes .venv/ first if it is missing (scripts/setup.sh), which also explains PYTHON and VENV.
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac

"$root/scripts/setup.sh"

venv=${VENV:-.venv}
if [[ $venv != /* ]]; then venv=$root/$venv; fi
# Huge pages: a training step touches so much fresh memory that its page faults show. Other C libraries ignore this.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
exec "$venv/bin/python" -m gmlp_flax quickstart "$@"
