# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# torchvision's wheel is built for CUDA, and libraries import it wherever it is installed: it gets
# an environment of its own, on top of the first.
VISION ?= .venv-vision
SEEING := $(VISION)/.ready
# So does the browser, of 200 MB.
BROWSER  ?= .venv-browser
BROWSING := $(BROWSER)/.ready

# Packages into an environment. uv takes a fifth of pip's time, but reads none of its settings, such
# as another index: where uv fails, pip installs.
define install
	$(BIN)/uv pip install --quiet --python $(1)/bin/python -c constraints.txt $(2) || \
	  $(BIN)/pip --python $(1)/bin/python install --quiet --disable-pip-version-check \
	    -c constraints.txt $(2)
endef
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export UV_SYSTEM_CERTS ?= 1
# Without compiled files every process that tests start would compile all packages anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick lint types pytest vision browser format bench docs site clean

help:            ## show this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: .*## /\t/' | expand -t 12

setup: $(READY)  ## create .venv with everything but the [vision] extra

ITSELF := -e '.[train,export,hub,site,dev]'  # its commas would separate arguments of call
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check 'uv>=0.9'
	$(call install,$(VENV),$(ITSELF))
	@touch $@

demo: $(READY)   ## the main job on embedded data; leaves a report in demo-report/
	$(BIN)/equicolor demo --output demo-report

# mypy has one process: alone, it would leave a core idle.
test: lint       ## lint, types and all tests
	$(MAKE) -j2 types pytest
	$(MAKE) vision

quick: lint      ## lint and the quick tests, for work in progress
	$(BIN)/pytest -n auto --dist worksteal -q -m 'not slow' tests

lint: $(READY)   ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy, strict
	$(BIN)/mypy

# One thread per worker: two workers beat two threads on small tensors.
quick pytest vision browser: export OMP_NUM_THREADS ?= 1

pytest: $(READY) ## tests and the examples in docstrings
	$(BIN)/pytest -n auto --dist worksteal -q

# An environment on top of the first, with more packages: folder, packages and options.
define on_top
	$(PYTHON) -m venv --without-pip $(1)
	packages=$$($(1)/bin/python -c 'import site; print(site.getsitepackages()[0])') && \
	  base=$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') && \
	  echo "import site; site.addsitedir('$$base')" > $$packages/base.pth
	$(call install,$(1),$(2))
	@touch $(1)/.ready
endef

$(SEEING): $(READY) constraints.txt
	$(call on_top,$(VISION),--no-deps torchvision timm)

vision: $(SEEING) ## tests with torchvision and timm
	$(VISION)/bin/python -m pytest -n auto --dist worksteal -q tests/vision

$(BROWSING): $(READY) constraints.txt
	$(call on_top,$(BROWSER),PyQt6-WebEngine)

browser: $(BROWSING) ## tests of interactive pages in Chromium
	$(BROWSER)/bin/python -m pytest -q tests/browser

format: $(READY) ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## speed, as ratios; writes results/bench-*.json
	$(BIN)/python benchmarks/layers.py --device cpu --output results/bench-layers-cpu.json --force

# neuron-features.png needs a trained network and photographs, and the samples of ColorMNIST need
# the full MNIST: what cannot be drawn stays as it is. See docs/experiments.md.
docs: $(READY)   ## redraw the figures of docs/ from results/; build/figures/ has all there are
	$(BIN)/equicolor reproduce all --from results --figures build/figures
	cd docs && for figure in *.png; do \
	  [ ! -e ../build/figures/$$figure ] || cp ../build/figures/$$figure .; done

# The site shows the pages and outputs of notebooks. They need not run again for a change of prose.
build/notebook/page.html: $(wildcard examples/*.ipynb) docs/run_notebook.py | $(READY)
	rm -rf build/notebook && mkdir -p build/notebook
	cd build/notebook && for notebook in $(abspath $(filter %.ipynb,$^)); do \
	  MPLBACKEND=agg $(abspath $(BIN))/python ../../docs/run_notebook.py $$notebook || exit 1; done

# The source folder is the repository: links between its files lead to the same places.
site: $(READY) build/notebook/page.html  ## the documentation as a site; leaves it in build/site/
	rm -rf build/site docs/api
	$(BIN)/python -m sphinx -q -W --keep-going -E -c docs -d build/doctrees . build/site
	@echo "build/site/index.html: $$(find build/site -name '*.html' | wc -l) pages"

clean:           ## remove the environments, reports and the site
	rm -rf $(VENV) $(VISION) $(BROWSER) demo-report build docs/api
