# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types pytest format bench docs clean

help:            ## show this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: .*## /\t/' | expand -t 12

setup: $(READY)  ## create .venv with everything but the [vision] extra

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,export,hub,dev]'
	@touch $@

demo: $(READY)   ## the main job on embedded data; leaves a report in demo-report/
	$(BIN)/equicolor demo --output demo-report

test: lint types pytest  ## lint, types and all tests

lint: $(READY)   ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy, strict
	$(BIN)/mypy

# One thread per worker: two workers beat two threads on small tensors.
pytest: $(READY) ## tests and the examples in docstrings
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal -q

format: $(READY) ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## speed, as ratios; writes results/bench-*.json
	$(BIN)/equicolor bench layers --device cpu --output results/bench-layers-cpu.json --force

docs: $(READY)   ## regenerate the pictures in docs/
	$(BIN)/python -m equicolor.experiments.equivariance --output docs

clean:           ## remove the environment and reports
	rm -rf $(VENV) demo-report
