#!/usr/bin/env bash
# The peers' wheels, unpacked into DEST for PYTHONPATH; nothing else is installed or changed.
#   bench/pack_peers.sh DEST          for this environment, which has their dependencies (SGLang brings them): 3 MB
#   bench/pack_peers.sh DEST 3.12     for a Linux x86-64 host with that Python, torch and transformers, and no network:
#                                     also pydantic, which speculators' configuration needs, and Hydra and isal, which ours does
# What is missing there beyond that (datasets, openai) no step of training calls: see bench/peers/stand_ins.py.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,6s/^# //p' "$0"; exit 2; }
dest=$1 python=${2:-}
venv=$(cd "$(dirname "$0")/.." && pwd)/.venv
wheels=(specforge==0.2.0 speculators==0.9.0 hs-connectors==0.9.0)
options=(--quiet --disable-pip-version-check --no-deps --no-compile --only-binary=:all: --upgrade --target "$dest")
if [ -n "$python" ]; then
  wheels+=(pydantic==2.12.5 pydantic-core==2.41.5 annotated-types==0.7.0 typing-inspection==0.4.2)
  wheels+=(hydra-core==1.3.8 omegaconf==2.3.1 isal==1.9.1)
  options+=(--implementation cp --python-version "$python" --platform manylinux_2_17_x86_64)
fi
"$venv/bin/python" -m pip install "${options[@]}" "${wheels[@]}"
if [ -n "$python" ]; then # OmegaConf's parser has no wheel; it is plain Python
  cp -r "$("$venv/bin/python" -c 'import antlr4; print(antlr4.__path__[0])')" "$dest/"
  find "$dest" -name __pycache__ -prune -exec rm -r {} +
fi
rm -rf "$dest/bin"
du -sh "$dest"
