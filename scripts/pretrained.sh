#!/usr/bin/env bash
# Trains the models that come with gmlp_flax, and writes them to gmlp_flax/pretrained/NAME: an hour on 2 CPU cores.
#
# Usage: scripts/pretrained.sh BOOKS [RUNS]
# BOOKS is what config.data.train takes, such as books.jsonl.xz, with public-domain books in English; RUNS, the folder of
# the runs, is runs/pretrained by default. The same command resumes where it stopped. A model that is there is kept:
# delete its folder first. PYTHON and VENV are explained in setup.sh.
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
if (( $# < 1 || $# > 2 )); then echo "error: expected scripts/pretrained.sh BOOKS [RUNS]" >&2; exit 2; fi
books=$1 runs=${2:-runs/pretrained}
venv=${VENV:-.venv}
if [[ $venv != /* ]]; then venv=$root/$venv; fi

make() {  # NAME, what the data are, and the flags of its training
  local name=$1 data=$2 out=$root/gmlp_flax/pretrained/$1
  shift 2
  if [[ -e $out ]]; then return; fi
  "$venv/bin/python" -m gmlp_flax train --workdir="$runs/$name" "$@"
  "$venv/bin/python" -m gmlp_flax export --model="$runs/$name" --out="$out" --dtype=bfloat16 --license=apache-2.0
  printf '\nData: %s.\n\nMade by `scripts/pretrained.sh`, with `%s`.\n' "$data" "${*//$books/BOOKS}" >> "$out/README.md"
}

novels="130 whole English books in the public domain (65 million characters), a twentieth of them held out"
make books_gmlp "$novels" --config=own_text --config.data.train="$books" --config.model.vocab_size=6000 --config.steps=2200
make books_amlp_causal "$novels" --config=causal_text:amlp --config.data.train="$books" --config.model.vocab_size=6000 \
  --config.steps=2200
make digits "UCI's optical recognition of handwritten digits (CC BY 4.0), which gmlp_flax has" \
  --config=quickstart_image --config.steps=1000
