# make quickstart   install, then a drafter for a small real model on this machine's CPU
# make install      the environment alone (.venv, about 10 GB)
# make test         all tests            make check   ruff, formatting, types, import order
# make torture      an extraction killed with -9 at twenty random moments (EAGLE3_KILLS=n: so many); a quarter of an hour
# make parity       our losses and gradients against SpecForge's and speculators' (installed into ~/.cache/eagle3)
# make compat       every SGLang version's source against what the dump plugin uses of it
# make lock         compile requirements.txt anew after a change of pyproject.toml or requirements.in
# From any folder: make -C /path/to/eagle3 quickstart.     Another Python: make install PYTHON=python3.12
# By the shell: make's own functions take a path with a space for two.
ROOT := $(shell cd "$$(dirname "$(strip $(MAKEFILE_LIST))")" && pwd)
BIN := "$(ROOT)/.venv/bin"
export PYTHON
# Where bytecode is not kept, each of a server's processes compiles SGLang anew: half a minute of CPU.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help quickstart install test torture parity compat check format lock
.DEFAULT_GOAL := help

help:
	@sed -n '1,8s/^# //p' "$(ROOT)/Makefile"

quickstart: install
	$(BIN)/python "$(ROOT)/run.py" experiment=quickstart

install:
	@bash "$(ROOT)/scripts/install.sh"

test: install
	cd "$(ROOT)" && $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

torture: install
	cd "$(ROOT)" && EAGLE3_KILLS=$${EAGLE3_KILLS:-20} $(BIN)/python -m pytest -n 0 -s tests/e2e/test_losses.py -k killed

parity: install
	cd "$(ROOT)" && $(BIN)/python -m pytest tests/parity -o python_files='parity_*.py'

compat: install
	cd "$(ROOT)" && $(BIN)/python -m tests.compat

check: install
	cd "$(ROOT)" && $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright && $(BIN)/lint-imports

format: install
	cd "$(ROOT)" && $(BIN)/ruff check --fix . && $(BIN)/ruff format .

lock:
	cd "$(ROOT)" && $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --prerelease=allow --no-emit-index-url \
	  --no-annotate --no-header --no-emit-package eagle3 requirements.in --output-file requirements.txt
