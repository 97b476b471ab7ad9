# FedMAP. `make help` lists what there is; every target sets up what it needs.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
# Flower's own pins exclude some of ours, so it has an environment of its own (docs/adr/0025). `make test` lays
# those few packages over the first environment; the whole one, with Ray, is for the long tests.
LAYER := .venv-flower-layer
LAYER_READY := $(LAYER)/.installed
FLOWER_VENV := .venv-flower
FLOWER_BIN := $(FLOWER_VENV)/bin
FLOWER_READY := $(FLOWER_VENV)/.installed
# Modules are compiled when they are first imported: most of what is installed never is.
PIP_INSTALL := install --quiet --disable-pip-version-check --no-compile
SOURCES := common aggregator site_agent lab deploy integrations proto tests
# Each source root is a distribution of its own; the one of this folder is what the code is developed with.
PROJECTS := pyproject.toml $(addsuffix /pyproject.toml,common aggregator site_agent lab integrations/flower)
# Containers: podman or docker, whichever is there. IMAGE_OPTIONS go to every build, such as --network host;
# TORCH_INDEX is the index of torch's CPU builds, where your pip does not find them by itself.
ENGINE ?= $(shell command -v podman || command -v docker)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION = $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
IMAGES ?= aggregator:aggregator site:site_agent lab:lab
IMAGE_OPTIONS ?=
TORCH_INDEX ?=
export BUILDAH_FORMAT := docker
# The release before this one, a tag or a commit: its agents must work with this aggregator (`make upgrade-test`).
PREVIOUS ?= 29d5546
PREVIOUS_HOME := out/previous/$(PREVIOUS)
# Whose offline kit: site or aggregator.
ROLE ?= site
# One thread per process: results do not depend on the number of cores, and tests run side by side instead.
export OMP_NUM_THREADS := 1

.PHONY: help demo check test proof test-all test-ours test-beside test-flower lint lint-ours lint-flower format bench proto images compose-test install-test upgrade-test offline-kit offline-kit-test clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

$(READY): $(PROJECTS) constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "FedMAP needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/pip $(PIP_INSTALL) -c constraints.txt $(foreach root,common aggregator site_agent lab .,-e $(root))
	@touch $@

$(LAYER_READY): $(READY) constraints-flower.txt
	"$(PYTHON)" -m venv --without-pip --clear $(LAYER)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(LAYER)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first-environment.pth"
	$(BIN)/pip --python $(LAYER)/bin/python $(PIP_INSTALL) -c constraints-flower.txt $(foreach root,common aggregator site_agent integrations/flower,-e $(root))
	@touch $@

$(FLOWER_READY): $(PROJECTS) constraints-flower.txt
	"$(PYTHON)" -m venv $(FLOWER_VENV)
	$(FLOWER_BIN)/pip $(PIP_INSTALL) -c constraints-flower.txt $(foreach root,common aggregator site_agent lab . integrations/flower[simulation],-e $(root))
	@touch $@

demo: $(READY) ## a federation of real processes on this machine, with a results table and a picture
	$(BIN)/fedmap-lab demo --out out/demo

# Everything side by side: tests of processes wait often, and types take one core only. What runs beside our own
# tests prints when it is done, so that lines stay whole. Nothing is installed meanwhile: that rewrites *.egg-info.
test: $(READY) $(LAYER_READY) ## everything CI runs: lint, types, all tests but the long ones
	@$(MAKE) --no-print-directory --jobs=3 test-ours test-beside

check: lint-ours ## under a minute, before a commit: lint, types, the tests of what changed (BASE=main: since main)
	$(BIN)/pytest -n auto $$($(BIN)/python -m tests.changed $(BASE))

test-ours: $(READY)
	$(BIN)/pytest -n auto --dist loadgroup --no-loadscope-reorder --ignore tests/integrations

test-beside:
	@$(MAKE) --no-print-directory --output-sync=target lint test-flower

test-flower: $(LAYER_READY)
	$(LAYER)/bin/python -m pytest tests/integrations

test-all: test $(FLOWER_READY) ## the long tests as well (more faults, Prometheus, Flower on Ray, docs/flower.md)
	$(BIN)/pytest -n auto --dist loadgroup --no-loadscope-reorder --ignore tests/integrations -m long
	$(FLOWER_BIN)/pytest -m 'not containers' tests/integrations

proof: $(READY) $(LAYER_READY) ## small studies through every driver give the recorded bits (minutes)
	$(BIN)/python -m tests.proof

lint: lint-flower ## ruff and mypy --strict

# After the others' types, whose cache it shares.
lint-flower: lint-ours $(LAYER_READY)
	$(BIN)/mypy --python-executable $(LAYER)/bin/python integrations tests/integrations/*.py tests/bench/flower.py

lint-ours: $(READY)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(READY) ## put the code into its one form
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(READY) ## speed and memory as ratios, into docs/benchmarks.md (minutes)
	$(BIN)/python -m tests.bench

upgrade-test: $(READY) $(PREVIOUS_HOME)/.installed ## this version with the one before it, in real processes (minutes)
	FEDMAP_PREVIOUS="$(CURDIR)/$(PREVIOUS_HOME)/venv/bin" $(BIN)/pytest tests/upgrade/upgrade_federation.py

$(PREVIOUS_HOME)/.installed:
	rm -rf $(PREVIOUS_HOME) && mkdir -p $(PREVIOUS_HOME)/source
	git archive $(PREVIOUS) | tar -x -C $(PREVIOUS_HOME)/source
	"$(PYTHON)" -m venv $(PREVIOUS_HOME)/venv
	$(PREVIOUS_HOME)/venv/bin/pip install --quiet --disable-pip-version-check \
	  -c $(PREVIOUS_HOME)/source/constraints.txt '$(PREVIOUS_HOME)/source[aggregator,site]'
	@touch $@

proto: $(READY) ## generate code from the contract in proto/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Ifedmap/contract/v1=proto/fedmap/v1 \
	  --python_out=common --mypy_out=quiet:common \
	  $(patsubst proto/fedmap/v1/%,fedmap/contract/v1/%,$(wildcard proto/fedmap/v1/*.proto))
	$(BIN)/python proto/generate_values.py

images: ## container images of aggregator, site agent and lab
	@[ -n "$(ENGINE)" ] || { echo "FedMAP's images need podman or docker; neither is installed"; exit 1; }
	@set -e; for image in $(IMAGES); do \
	  echo "building fedmap-$${image%%:*}:$(VERSION)"; \
	  "$(ENGINE)" build $(IMAGE_OPTIONS) --file "deploy/$${image##*:}/Dockerfile" --tag "fedmap-$${image%%:*}:$(VERSION)" \
	    --build-arg TORCH_INDEX="$(TORCH_INDEX)" --build-arg VERSION="$(VERSION)" --build-arg REVISION="$(REVISION)" .; \
	done

compose-test: $(READY) images ## the images and docker-compose.yml for real, containers killed on the way (minutes)
	FEDMAP_VERSION="$(VERSION)" IMAGE_OPTIONS="$(IMAGE_OPTIONS)" $(BIN)/pytest -m containers tests/containers

install-test: $(READY) ## the guides' plain-Python installation as written, in folders of its own (minutes; needs root)
	$(BIN)/pytest -s tests/deploy/plain_installation.py

offline-kit: $(READY) ## one archive that installs without a network; ROLE=aggregator for the centre's (minutes)
	$(MAKE) images IMAGES="$(if $(filter site,$(ROLE)),site:site_agent,$(ROLE):$(ROLE))"
	$(BIN)/python -m deploy.offline_kit build --role "$(ROLE)" --engine "$(ENGINE)" --out dist

offline-kit-test: offline-kit ## install that archive with no interface but loopback (minutes; needs root and podman)
	FEDMAP_KIT="dist/$$($(BIN)/python -m deploy.offline_kit name --role "$(ROLE)")" $(BIN)/pytest -s tests/deploy/offline_installation.py

clean: ## remove what make made, the virtual environment included
	rm -rf $(VENV) $(LAYER) $(FLOWER_VENV) out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
