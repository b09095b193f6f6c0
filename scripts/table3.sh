#!/usr/bin/env bash
# Trains Table 3 again, row by row, for as many minutes as there are; the same command resumes where it stopped.
#
# Usage: scripts/table3.sh MINUTES DATA RUNS [--config.KEY=VALUE ...]
# DATA is what config.data.train takes, RUNS a folder. Each row's rate is searched (RATES), by runs of the first seed that
# score another part of the training data than the table does, and the best is trained with every seed (SEEDS). When the
# time is over, the running ones save and stop, and the report is made of the rows that are there: any half hour of a GPU
# adds rows. At 90 s a run, as alone on an H200, a row takes 12 minutes.
# In the environment, with their defaults: SCALE=gpu; RATES=1e-3,2e-3,4e-3,8e-3,1.6e-2; SEEDS=0,1,2; JOBS=1, runs at a
# time; ROWS, the names of Table 3's rows, with spaces between them; OUT=reports. PYTHON and VENV are explained in setup.sh.
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
if (( $# < 3 )) || ! [[ $1 =~ ^[0-9]+$ ]]; then
  echo "error: expected scripts/table3.sh MINUTES DATA RUNS, as in scripts/table3.sh 25 books/data runs/table3" >&2
  exit 2
fi
minutes=$1 data=$2 runs=$3
shift 3
scale=${SCALE:-gpu}
read -ra rows <<< "${ROWS:-bert_rel sgu bert multiplicative additive linear mixer bert_rel_only}"
venv=${VENV:-.venv}
if [[ $venv != /* ]]; then venv=$root/$venv; fi
lacking=0
for row in "${rows[@]}"; do
  left=$(( 60 * minutes - SECONDS ))
  if (( left <= 0 )); then lacking=1; break; fi
  # On SIGTERM a sweep lets its runs save first.
  timeout --signal=TERM "$left" "$venv/bin/python" -m gmlp_flax sweep --config="c4_ablation:$row,scale=$scale" \
    --out="$runs/$row" --grid="optimizer.learning_rate=${RATES:-1e-3,2e-3,4e-3,8e-3,1.6e-2}" --seeds="${SEEDS:-0,1,2}" \
    --jobs="${JOBS:-1}" --config.data.train="$data" "$@" || lacking=1
done
"$venv/bin/python" -m gmlp_flax reproduce table3 --scale="$scale" --from="$runs/*" --out="${OUT:-reports}"
if (( lacking )); then echo "some rows are missing: run the same command again" >&2; exit 1; fi
