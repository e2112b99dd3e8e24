#!/usr/bin/env bash
# Builds .venv beside the Makefile: pinned versions from requirements.txt, by uv, which pip brings. Safe to run again;
# does nothing when what is installed is what the files ask for.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
need_gb=10

fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

supported() { "$1" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)))' >/dev/null 2>&1; }

find_python() { # the one asked for by PYTHON, else the first supported one
  if [ -n "${PYTHON:-}" ]; then
    supported "$PYTHON" || fail "PYTHON=$PYTHON is $("$PYTHON" --version 2>&1 || echo 'not there'); eagle3 needs Python 3.11, 3.12 or 3.13."
    echo "$PYTHON"; return
  fi
  for name in python3 python3.11 python3.12 python3.13; do
    if command -v "$name" >/dev/null && supported "$name"; then echo "$name"; return; fi
  done
  fail "no Python 3.11, 3.12 or 3.13 found (python3 is $(python3 --version 2>&1 || echo 'not there')). Install one, or name it: make install PYTHON=/path/to/python3.12"
}

wanted=$(cat "$root/requirements.txt" "$root/pyproject.toml" <(echo "$root") | sha256sum | cut -d' ' -f1)
if [ "$(cat "$venv/.installed" 2>/dev/null || true)" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then exit 0; fi

python=$(find_python)
if ! [ -e "$venv/.installed" ]; then
  free_gb=$(($(df -Pk "$root" | awk 'NR == 2 {print $4}') * 1024 / 1000000000))
  [ "$free_gb" -ge "$need_gb" ] || fail "the environment takes $need_gb GB and $root has $free_gb GB free. Make room, or clone to another disk."
fi
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python has no venv module. On Debian: apt-get install python3-venv"
rm -f "$venv/.installed"
supported "$venv/bin/python" || rm -rf "$venv"
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv"
echo "installing into $venv (about 10 GB; a few minutes on a first install)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv>=0.9,<1"
# --prerelease: SGLang pins release candidates of some kernels.
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --prerelease=allow \
  --requirements "$root/requirements.txt" || fail "the packages could not be installed: see above. The same command continues."
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --editable "$root"
echo "$wanted" > "$venv/.installed"
