# Everything a newcomer needs: `make demo` shows the main job, `make test` runs the tests.
# Both set everything up first; the second time that costs nothing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RUNS   ?= 1000
# What builds the image, and the image's name: the chart's values are image.repository and image.tag.
ENGINE ?= docker
IMAGE  ?= partage:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/partage/__init__.py)
# A Python 3.13, by name or path, for `make test-313`: Debian trixie's, unless said.
PYTHON313 ?= python3.13
# The interpreter whose packages apt-get installs.
DEBIAN ?= /usr/bin/python3
# Debians with newer Slurms than this machine's, for the tests that start a real Slurm.
SLURMS := build/slurm
# Programs of a real Kubernetes, and the image, for `make chart` and `make e2e`.
CLUSTER ?= build/cluster
# The Kubernetes of `make chart` and `make e2e`: a folder of tests/cluster/kubernetes.
KUBERNETES ?= 1.37.2
# The folder of `make on-gpu-kit`, and the processor of the machine that it is for: x86_64 or aarch64.
KIT ?= build/partage-on-gpu
PROCESSOR ?= x86_64
ON_GPU ?=
# What tests with real programs need, fetched or built once; what cannot be had is skipped with the reason.
REAL_PARTS := build/.slurm-tried build/.browser-tried build/.prometheus-tried build/.nvidia-tried build/.toolkit-tried
# Which tests `make e2e` runs; `E2E=slow`: those that wait for a minute or more.
E2E ?= not slow
STORY  ?= examples/07-mixed-node/story.yaml
# More workers than two cores: a third of the time a test waits for sockets and processes.
# Each worker would rewrite the assertions of all tests anew where Python may not write bytecode.
PYTEST ?= PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 5 --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help setup demo limit-hook slurm-limits image wheel test test-all test-313 walks mutate check format lint types contracts pictures docs reference soak claims-kills guard-torch slurm slurm-many bench on-gpu on-gpu-kit chart e2e proto lock clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## */  make \1|/' | column -t -s '|'

setup: $(READY)  ## install Partage and its tools into .venv

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Partage needs Python 3.11 or newer; say which: make PYTHON=python3.12 ..." >&2; exit 2; }
	@test -x $(BIN)/python || { echo "setup 1/4: making a Python environment in $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "setup 2/4: updating pip in it"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@echo "setup 3/4: downloading and installing Partage's libraries and tools (half a minute, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev -e .
	@# Where Python may not write bytecode by itself, each start of the agent would compile all of it anew.
	@echo "setup 4/4: compiling Partage to bytecode"
	@$(BIN)/python -m compileall -q src
	@touch $@

# The hook that sets the driver's memory limits of containers, for this machine's processor. The image builds its own.
limit-hook:  ## compile the hook of memory limits, where Partage runs without its image (needs a C compiler)
	src/partage/edges/cdi/limit_hook/build src/partage/edges/cdi/limit_hook/partage-limit-hook

# For the Slurm whose spank.h is there; another place: make slurm-limits SLURM=/opt/slurm. LIMITS: where the two files go.
SLURM  ?= /usr
LIMITS ?= build/slurm-limits
slurm-limits:  ## compile the SPANK plugin of memory limits and its hook for this Slurm (needs a C compiler and spank.h)
	CFLAGS="-I$(SLURM)/include $(CFLAGS)" src/partage/slurm/limits/build $(LIMITS)

# make demo SERVE=--serve: the page in the browser stays until Ctrl-C.
demo: $(READY)  ## eight simulated GPUs, shared in four ways, pods and all
	@echo "demo: playing the story $(STORY) on a simulated node"
	$(BIN)/partage simulate $(STORY) --http 127.0.0.1:0 $(SERVE)
	@echo "demo: done. Next: $(BIN)/partage --help, or docs/quickstart/laptop.md"

# IMAGE=REGISTRY/partage:TAG names it; ENGINE=podman or buildah builds it, too.
image:  ## the image of the chart; IMAGE=registry.example.com/partage:0.1.0 names it
	$(ENGINE) build -f deploy/image/Containerfile -t $(IMAGE) .
	@echo "image: $(IMAGE) is built. Next: $(ENGINE) push $(IMAGE), and helm install as deploy/helm/partage/README.md says"

wheel: $(READY)  ## Partage as one file in dist/, to install on nodes
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

test: $(READY) build/.tests-compiled  ## the tests that need nothing but Python (5 minutes on two cores)
	@PARTAGE_QUICK=1 $(PYTEST) -m "not real" || { test $$? -eq 1 && $(FAILED_ALONE); }

# Once, and not by each worker at the same time: two halves, on two cores.
build/.tests-compiled: $(READY) $(shell find tests -name '*.py')
	@mkdir -p build
	@for half in 'tests/[a-e]*' 'tests/[f-z]*'; do \
	  PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q --collect-only $$half > /dev/null & done; wait
	@touch $@

test-all: $(READY) build/.tests-compiled $(REAL_PARTS)  ## all tests, also those with real Slurms, Chromium, Prometheus, NVIDIA's programs, and those marked real (20 minutes)
	@$(PYTEST) || { test $$? -eq 1 && $(FAILED_ALONE); }

# The environment is a folder of its own: .venv stays as it is.
test-313:  ## all tests on Python 3.13; PYTHON313=/usr/bin/python3.13 names it
	@$(PYTHON313) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null \
	  || { echo "test-313: $(PYTHON313) is no Python 3.13; say which: make test-313 PYTHON313=/path/to/python3.13" >&2; exit 2; }
	@mkdir -p build && $(MAKE) --no-print-directory test-all VENV=build/venv-3.13 PYTHON=$(PYTHON313)

# Some tests watch real processes, and a machine that is busy elsewhere can make one late. What failed is
# shown, and tried once more with nothing beside it: only what fails again fails the run. A test that passes
# then has a fault, too: it is named in the last lines, and mended. What tests leave behind has another exit code.
FAILED_ALONE = $(BIN)/python -m tests.second_try

# Once: as root it installs Slurm, else the tests with a real Slurm are skipped.
build/.slurm-tried: tests/slurm/prepare.sh
	@mkdir -p build && tests/slurm/prepare.sh $(SLURMS) && touch $@

# Once: as root it installs Chromium, else the tests of the page in a browser are skipped.
build/.browser-tried: tests/web/prepare.sh
	@mkdir -p build && tests/web/prepare.sh && touch $@

# Once: as root it installs Prometheus, else the tests with a real Prometheus are skipped.
build/.prometheus-tried: tests/prometheus/prepare.sh
	@mkdir -p build && tests/prometheus/prepare.sh && touch $@

# Once: NVIDIA's own libraries and MPS programs by driver branch, unpacked; else their tests are skipped.
build/.nvidia-tried: tests/nvidia/prepare.sh
	@mkdir -p build && tests/nvidia/prepare.sh build/nvidia && touch $@

# Once: NVIDIA's container toolkit, built from its Go module; else its tests are skipped.
build/.toolkit-tried: tests/nvidia/prepare-toolkit.sh tests/nvidia/toolkit/go.mod
	@mkdir -p build && tests/nvidia/prepare-toolkit.sh build/nvidia/toolkit && touch $@

slurm: $(READY)  ## the tests with real Slurms, 22.05, 24.11 and 26.05 (installs them: root, 370 MB)
	tests/slurm/prepare.sh $(SLURMS)
	PARTAGE_SLURM_ALL=1 $(BIN)/python -m pytest tests/slurm -rs -v

slurm-many: $(READY)  ## 200 jobs in random order on 8 GPUs, whole and shared, and 200 of two users on two GPUs, on each Slurm (20 minutes)
	tests/slurm/prepare.sh $(SLURMS)
	PARTAGE_SLURM_ALL=1 PARTAGE_SLURM_JOBS=200 $(BIN)/python -m pytest tests/slurm/test_many_jobs.py tests/slurm/test_refused_jobs.py -rs -v --timeout 600

check: format lint types contracts docs test-all  ## what continuous integration runs

format: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports --no-logo

pictures: $(READY)  ## draw the pictures of the page in docs/how-to/pictures anew (needs Chromium: tests/web/prepare.sh)
	PYTHONPATH=. $(BIN)/python -m tests.web.pictures

docs: $(READY)  ## the pages of docs/ as a site in build/site; a broken link ends it
	@# The variable hides the theme's notice of its end of life, May 5, 2027: pyproject.toml says why it stays until then.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: $(READY)  ## write the tables of docs/reference anew from the code
	$(BIN)/python -m tools.reference

# MUTATE="--seed 7 --count 10" chooses others.
mutate: $(READY)  ## 40 small faults in the decisions, and whether make test finds each (15 minutes)
	$(BIN)/python -m tools.mutate $(MUTATE)

walks: $(READY)  ## print which files run, in order, when a policy and when a MIG layout changes
	$(BIN)/python -m tools.walks

soak: $(READY)  ## the laws of a whole node, in RUNS random lives of it instead of 25
	PARTAGE_EXAMPLES=$(RUNS) $(PYTEST) --timeout=0 tests/node

claims-kills: $(READY)  ## 1,000 claims of all kinds, eight at a time, while agent and helper are killed 50 times (4 minutes)
	PARTAGE_CLAIMS=1000 PARTAGE_KILLS=50 $(BIN)/python -m pytest tests/claims/kills/test_kills.py -n 0 -s

guard-torch: $(READY)  ## the guard with a real PyTorch, Debian's (installs it: root, 650 MB)
	@$(DEBIAN) -c 'import torch' 2>/dev/null || apt-get install -y --no-install-recommends python3-torch
	$(BIN)/python -m pytest tests/guard/test_real_torch.py -rs -v

bench: $(READY)  ## latencies, memory, start-up, next to the figures of NVIDIA's plugin
	$(BIN)/python -m bench

# ON_GPU="--change --minutes 9": its options. Where nothing is set up, the kit runs it, which needs no network.
on-gpu:  ## see on a real GPU what has only been simulated, and write docs/evidence (one hour; needs a driver)
	@if [ ! -e $(READY) ] && [ -x $(KIT)/on-gpu ]; then $(PYTHON) $(KIT)/on-gpu $(ON_GPU); \
	else $(MAKE) --no-print-directory setup && $(BIN)/python -m tools.on_gpu $(ON_GPU); fi

on-gpu-kit: $(READY)  ## one folder with all of that, for a machine with a driver and a Python, and no network
	$(BIN)/python -m tools.on_gpu.kit $(KIT) $(PROCESSOR)

$(CLUSTER)/helm $(CLUSTER)/kubeconform $(CLUSTER)/$(KUBERNETES)/kubelet:
	tests/cluster/build $(CLUSTER) $(KUBERNETES)

chart: $(READY) $(CLUSTER)/helm  ## check the Helm chart, and write deploy/manifests from it (builds helm: Go)
	$(CLUSTER)/helm lint --quiet deploy/helm/partage --namespace partage
	PATH="$(abspath $(CLUSTER)):$$PATH" $(BIN)/python deploy/render_chart.py
	$(BIN)/python -m pytest -q -n 0 tests/deploy
	tests/cluster/schemas "$$(cd tests/cluster/kubernetes/$(KUBERNETES) && go list -m -f '{{.Dir}}' k8s.io/kubernetes)/api/openapi-spec/swagger.json" $(CLUSTER)/schemas
	$(CLUSTER)/kubeconform -strict -summary -skip ServiceMonitor,PrometheusRule \
	  -schema-location '$(abspath $(CLUSTER))/schemas/{{.ResourceKind}}{{.KindSuffix}}.json' deploy/manifests tests/deploy/rendered

e2e: $(READY) chart $(CLUSTER)/$(KUBERNETES)/kubelet  ## the chart on a real Kubernetes that is started here (root; builds it: Go, 15 min once)
	@tests/cluster/packages
	tests/cluster/partage-image $(CLUSTER)
	@echo "e2e: Kubernetes $(KUBERNETES) (KUBERNETES=VERSION for another: $(notdir $(wildcard tests/cluster/kubernetes/*)))"
	PARTAGE_E2E_BIN="$(abspath $(CLUSTER))/$(KUBERNETES)" $(BIN)/python -m pytest tests/e2e -v -m "$(E2E)"

proto: $(READY)  ## generate the kubelet's messages anew from proto/
	$(BIN)/python proto/generate.py

lock: $(READY)  ## pin what is installed now
	$(BIN)/python -m pip freeze --exclude-editable --exclude pip > constraints.txt

clean:  ## remove what setup and tests left
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build/site dist
