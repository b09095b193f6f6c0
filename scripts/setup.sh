#!/usr/bin/env bash
# Makes .venv/ in the repository root and installs gmlp_flax there, editable, with the extras asked for.
#
# Usage: scripts/setup.sh [EXTRA ...]      extras are listed in setup.cfg, under [options.extras_require]
#   PYTHON=python3.12 scripts/setup.sh     the Python that makes the environment (default: python3; 3.11 or newer)
#   VENV=/big/disk/venv scripts/setup.sh   where the environment goes (a relative path counts from the root)
#   CONSTRAINTS=none scripts/setup.sh      the newest versions that requirements.txt allows, not the tested ones of
#                                          constraints-3.11.txt or, for Python 3.12 and newer, constraints-3.13.txt
#
# Nothing is installed outside the environment. uv does the work: the one on PATH, or one that pip puts into the
# environment. pip does it where uv fails, and where pip's settings name another package index, which uv does not read.
# A stamp in the environment tells the next call what is there: it installs what is missing, and returns at once if
# nothing is.
set -euo pipefail
unset CDPATH
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf 'setup: %s\n' "$*"; }
. "$root/scripts/patiently.sh"
fail() { printf 'setup: %s\n' "$*" >&2; exit 2; }

# Prints "3.11.7 /usr/bin/python3", or nothing if command $1 does not run. If $1 belongs to an environment, the path is
# of the Python beneath it: the environment may be the one about to be rebuilt.
describe() {
  "$1" -c 'import sys
print("%d.%d.%d %s" % (sys.version_info[:3] + (getattr(sys, "_base_executable", sys.executable),)))' 2>/dev/null || true
}

too_old() {  # version $1, such as 3.10.2
  local major=${1%%.*} rest=${1#*.}
  ((major < 3 || (major == 3 && ${rest%%.*} < oldest)))
}

# Prints the uv in the environment, which pip installs, or nothing if pip must do the work itself.
environment_uv() {
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check)
  local settings
  settings=$("${pip[@]}" config list 2>/dev/null || true)
  if [[ $settings == *.index-url=* ]]; then return; fi
  if [[ ! -x $venv/bin/uv ]]; then "${pip[@]}" install --quiet uv >/dev/null 2>&1 || return 0; fi
  printf '%s\n' "$venv/bin/uv"
}

# What an installation depends on, as one number; the root is in it because an editable install points there.
fingerprint() {  # version, extras, constraints
  { printf '%s\n' "$root" "$@"; cat requirements.txt setup.cfg pyproject.toml ${3:+"$3"}; } | cksum
}

for arg in "$@"; do
  case $arg in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done

asked=${PYTHON:-}
found=
if [[ -n $asked ]]; then found=$(describe "$asked"); fi  # before cd: PYTHON may be a relative path
cd -- "$root"

venv=${VENV:-.venv}
stamp=$venv/gmlp_flax.stamp  # two lines: the extras, the fingerprint
oldest=$(sed -n 's/^python_requires *= *>= *3\.\([0-9]*\).*/\1/p' setup.cfg)
known=$(sed -n '/^\[options.extras_require\]/,/^\[/s/^\([a-z0-9-]*\) *=.*/\1/p' setup.cfg)
for extra in "$@"; do
  grep -qxF -e "$extra" <<<"$known" || fail "unknown extra '$extra'; expected any of: ${known//$'\n'/ }"
done
uv=
if uv --version >/dev/null 2>&1; then uv=uv; fi

# 1. Is there an environment with the Python that was asked for? Without PYTHON, any Python of it will do.
present=$(describe "$venv/bin/python")
version=${present%% *}
rebuild=
if [[ -z $present ]]; then
  rebuild=yes
elif too_old "$version" || [[ -n $asked && $version != "${found%% *}" ]]; then
  rebuild=yes
fi

if [[ -n $rebuild ]]; then
  if [[ -z $asked ]]; then asked=python3 found=$(describe python3); fi
  version=${found%% *} python=${found#* }
  advice="install one and set PYTHON, e.g. PYTHON=python3.12 $0"
  [[ -n $found ]] || fail "no Python runs as '$asked'; expected Python 3.$oldest or newer: $advice"
  if too_old "$version"; then fail "'$asked' is Python $version; expected 3.$oldest or newer: $advice"; fi
  needed=venv
  if [[ -z $uv ]]; then needed=venv,ensurepip; fi
  if ! "$python" -c "import $needed" 2>/dev/null; then
    fail "'$asked' cannot make environments (no $needed): apt-get install python${version%.*}-venv"
  fi
  # A folder that is no environment is not ours to clear.
  if [[ ! -e $venv/pyvenv.cfg && -n $(ls -A -- "$venv" 2>/dev/null) ]]; then
    fail "$venv is not a virtual environment, and not empty: delete it, or set VENV to another folder"
  fi
fi

# 2. Is everything asked for installed? Extras once installed stay.
installed=
if [[ -z $rebuild && -f $stamp ]]; then read -r installed <"$stamp" || true; fi
extras=$(printf '%s\n' "${installed//,/$'\n'}" "$@" | sed '/^$/d' | sort -u | paste -s -d , -)
what=gmlp_flax${extras:+[$extras]}
constraints=constraints-3.13.txt
if [[ $version == 3.11.* ]]; then constraints=constraints-3.11.txt; fi
if [[ ${CONSTRAINTS:-} == none ]]; then constraints=; fi
want=$(fingerprint "$version" "$extras" "$constraints")
if [[ -z $rebuild && -f $stamp && $(sed -n 2p "$stamp") == "$want" ]]; then
  say "$what is up to date in $venv (Python $version)"
  exit 0
fi

# 3. Install. The fingerprint is written last, so that an interrupted installation is done again.
if [[ -n $rebuild ]]; then
  say "making $venv with Python $version ($python)"
  patiently "$python" -m venv --clear ${uv:+--without-pip} "$venv"
fi
printf '%s\n' "$installed" >"$stamp"
packages=(${constraints:+--constraint "$constraints"} --editable ".${extras:+[$extras]}")
# An environment has no pip if uv filled it or if its making was interrupted.
ensure_pip() { "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null; }
if [[ -z $uv ]]; then
  say "looking for uv"
  ensure_pip
  uv=$(environment_uv)
fi
if [[ -n $uv ]]; then
  say "installing $what with uv (1.3 GB in all)"
  patiently "$uv" pip install --compile-bytecode --quiet --python "$venv/bin/python" "${packages[@]}" || { say "uv failed, see above: trying pip"; uv=; }
fi
if [[ -z $uv ]]; then
  say "installing $what with pip (a first time takes about a minute, and 1.3 GB in all)"
  ensure_pip
  patiently "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}" || fail "installation failed, see above; run again to try again"
fi
# The first command would compile our modules, and every one where PYTHONDONTWRITEBYTECODE is set.
"$venv/bin/python" -m compileall -q gmlp_flax || say "the modules are compiled later, as this folder cannot be written to"
printf '%s\n' "$extras" "$want" >"$stamp"
say "$what is installed in $venv (Python $version, ${SECONDS} s)"
