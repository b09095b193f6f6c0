#!/usr/bin/env bash
# Builds the documentation site, or serves it on this machine. It uses the environment that scripts/setup.sh makes.
#
# Usage: scripts/docs.sh build [MKDOCS ARGUMENT ...]     makes site/; any warning is an error
#        scripts/docs.sh serve [MKDOCS ARGUMENT ...]     at http://127.0.0.1:8000, built anew whenever a page changes
# Both write the pages that docs/generate.py makes from the code first. PYTHON and VENV are explained in setup.sh.
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
say() { printf 'docs: %s\n' "$*"; }
. "$root/scripts/patiently.sh"

case ${1:-} in
  -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  build) arguments=(build --strict "${@:2}") ;;
  serve) arguments=(serve --dev-addr=127.0.0.1:8000 "${@:2}") ;;
  *) printf "docs: the command is '%s'; expected build or serve\n" "${1:-}" >&2; exit 2 ;;
esac

"$root/scripts/setup.sh" docs

cd -- "$root"
python=${VENV:-.venv}/bin/python
say "writing the pages that are made from the code (half a minute)"
JAX_PLATFORMS=cpu patiently "$python" docs/generate.py
# The link to the repository, at the top of each page: git's remote, as a browser opens it.
remote=$(git config --get remote.origin.url | sed -nE 's#^git@([^:]+):#https://\1/#; s#\.git$##; /^https?:/p' || true)
export REPOSITORY_URL=${REPOSITORY_URL-$remote}
say "mkdocs reads the code and writes all pages (a minute)"
# The theme warns of MkDocs 2, which its requirements exclude.
export NO_MKDOCS_2_WARNING=1
if [[ $1 == serve ]]; then exec "$python" -m mkdocs "${arguments[@]}"; fi
patiently "$python" -m mkdocs "${arguments[@]}"
