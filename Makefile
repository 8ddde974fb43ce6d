# Everything a newcomer needs: `make demo` shows the main job, `make test` runs the tests.
# Both set everything up first; the second time that costs nothing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RUNS   ?= 1000
# The interpreter whose packages apt-get installs.
DEBIAN ?= /usr/bin/python3
# Debian trixie with Slurm 24.11, for the tests that start a real Slurm.
SLURM_ROOT ?= build/slurm-24.11
STORY  ?= examples/07-mixed-node/story.yaml
# Two workers: the tests mostly wait for sockets and processes, not for a core.
PYTEST ?= $(BIN)/python -m pytest -n 2 --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format lint types contracts docs soak guard-torch slurm bench proto lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1|/' | column -t -s '|'

setup: $(READY)  ## install Partage and its tools into .venv

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Partage needs Python 3.11 or newer; say which: make PYTHON=python3.12 ..." >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev -e .
	@# Where Python may not write bytecode by itself, each start of the agent would compile all of it anew.
	$(BIN)/python -m compileall -q src
	@touch $@

demo: $(READY)  ## eight simulated cards, shared in four ways, pods and all
	$(BIN)/partage simulate $(STORY)

test: $(READY) build/.slurm-tried  ## all tests
	$(PYTEST)

# Once: as root it installs Slurm, else the tests with a real Slurm are skipped.
build/.slurm-tried: tests/slurm/prepare.sh
	@mkdir -p build && tests/slurm/prepare.sh $(SLURM_ROOT) && touch $@

slurm: $(READY)  ## the tests with real Slurms, 22.05 and 24.11 (installs them: root, 190 MB)
	tests/slurm/prepare.sh $(SLURM_ROOT)
	$(BIN)/python -m pytest tests/slurm -rs -v

check: format lint types contracts docs test  ## what continuous integration runs

format: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports --no-logo

docs: $(READY)  ## the pages of docs/ as a site in build/site; a broken link ends it
	$(BIN)/mkdocs build --strict

soak: $(READY)  ## the laws of a whole node, in RUNS random lives of it instead of 25
	PARTAGE_EXAMPLES=$(RUNS) $(PYTEST) --timeout=0 tests/node

guard-torch: $(READY)  ## the guard with a real PyTorch, Debian's (installs it: root, 650 MB)
	@$(DEBIAN) -c 'import torch' 2>/dev/null || apt-get install -y --no-install-recommends python3-torch
	$(BIN)/python -m pytest tests/guard/test_real_torch.py -rs -v

bench: $(READY)  ## latencies, memory, start-up, next to the figures of NVIDIA's plugin
	$(BIN)/python -m bench

proto: $(READY)  ## generate the kubelet's messages anew from proto/
	$(BIN)/python proto/generate.py

lock: $(READY)  ## pin what is installed now
	$(BIN)/python -m pip freeze --exclude-editable --exclude pip > constraints.txt

clean:  ## remove what setup and tests left
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build/site
