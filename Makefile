# FedMAP. `make help` lists what there is; every target sets up what it needs.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
# Flower's own pins exclude some of ours, so it has an environment of its own (docs/adr/0025).
FLOWER_VENV := .venv-flower
FLOWER_BIN := $(FLOWER_VENV)/bin
FLOWER_READY := $(FLOWER_VENV)/.installed
SOURCES := common aggregator site_agent lab integrations tests
# One thread per process: results are the same bits everywhere, and tests run side by side instead.
export OMP_NUM_THREADS := 1

.PHONY: help demo test test-all lint format bench proto clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "FedMAP needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(FLOWER_READY): pyproject.toml constraints-flower.txt
	"$(PYTHON)" -m venv $(FLOWER_VENV)
	$(FLOWER_BIN)/pip install --quiet --disable-pip-version-check -c constraints-flower.txt \
	  -e '.[dev,flower-simulation]'
	@touch $@

demo: $(READY) ## a federation of real processes on this machine, with a results table and a picture
	$(BIN)/fedmap-lab demo --out out/demo

test: $(READY) $(FLOWER_READY) lint ## everything CI runs: lint, types, all tests but the long ones
	$(BIN)/pytest -n auto --dist loadgroup -m "not long" --ignore tests/integrations
	$(FLOWER_BIN)/pytest -m "not long" tests/integrations

test-all: test ## the long tests as well (Flower on Ray, the commands of docs/flower.md)
	$(FLOWER_BIN)/pytest -m long tests

lint: $(READY) $(FLOWER_READY) ## ruff and mypy --strict
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(FLOWER_BIN)/mypy integrations tests/integrations/*.py tests/bench/flower.py

format: $(READY) ## put the code into its one form
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(READY) ## speed and memory, as ratios measured in one run (minutes)
	$(BIN)/python -m lab.bench
	$(BIN)/python -m tests.bench

proto: $(READY) ## generate code from the contract in proto/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Icommon/contract/v1=proto/fedmap/v1 \
	  --python_out=. --mypy_out=quiet:. --grpc_python_out=. --mypy_grpc_out=quiet:. \
	  $(patsubst proto/fedmap/v1/%,common/contract/v1/%,$(wildcard proto/fedmap/v1/*.proto))

clean: ## remove what make made, the virtual environment included
	rm -rf $(VENV) $(FLOWER_VENV) out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
