#!/usr/bin/env bash
# Writes constraints-3.11.txt and constraints-3.13.txt: a version of everything that CI installs (needs uv and PyPI).
#
# Usage: scripts/lock.sh [--upgrade]     keeps the versions that are there; --upgrade takes the newest ones
# libtpu is left out: the extras `tpu` and `plan` need different versions of it.
set -euo pipefail
unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  '' | --upgrade) ;;
  *) printf "lock: unknown argument '%s'; expected --upgrade or nothing\n" "$1" >&2; exit 2 ;;
esac
for version in 3.11 3.13; do
  uv pip compile setup.cfg --extra=test,lint,types,parity,docs,onnx,stablehlo,wordpiece,gcs,s3,tensorboard,wandb ${1:+"$1"} --python-version="$version.5" --quiet \
    --no-annotate --no-emit-package=libtpu --output-file="constraints-$version.txt" \
    --custom-compile-command="scripts/lock.sh; scripts/setup.sh installs these versions, pip install -c FILE too"
done
