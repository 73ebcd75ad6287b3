# From a clean clone, with nothing but Python >= 3.11 and make:
#
#   make demo    train a small decision-focused model, print loss and speed, save a picture
#   make test    the whole test suite
#   make lowest  the same with the lowest versions that pyproject.toml declares, in .venv-lowest
#   make lint    ruff, mypy and import-linter
#   make docs    the documentation site, with its gallery, in build/docs/index.html
#   make bench   the benchmarks; BENCH="families cores latency forms" selects some
#   make fuzz    random programs through every layer, judged exactly; MINUTES=20
#
# Each target creates the virtual environment if there is none, and installs only what is missing.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
TESTS ?= tests
BENCH ?= --all
MINUTES ?= 5
FUZZ ?=
TRY ?=

BIN := $(VENV)/bin
RUN := $(BIN)/python
LOWEST := $(VENV)-lowest
STAMP := $(VENV)/.installed
INSTALL := $(RUN) -m pip install --disable-pip-version-check --quiet -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lowest browser lint format docs linkcheck bench bench-peers fuzz clean

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ffo needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# One stamp per extra: a second run installs nothing unless the requirements have changed.
$(STAMP)-%: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) -e '.[$*]'
	@touch $@

demo: $(STAMP)-demo
	$(RUN) examples/decision_focused.py

test: $(STAMP)-test browser
	$(RUN) -m pytest -n $(WORKERS) $(TESTS)

# Compiled kernels of other versions of Numba have a cache of their own. TRY="scipy==1.13.1 daqp==0.8.0" tries other bounds.
lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) scripts/lowest.py $(TRY) > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --disable-pip-version-check --quiet -c $(LOWEST)/constraints.txt -e '.[test]'
	NUMBA_CACHE_DIR=$(abspath $(LOWEST))/numba $(LOWEST)/bin/python -m pytest -n $(WORKERS) $(TESTS)

# The report's pages are tested in a real browser; without one those tests are skipped.
browser:
	@sh scripts/browser.sh

lint: $(STAMP)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Every example of the gallery runs; a warning, or a link to a page or section that does not exist, is an error.
docs: $(STAMP)-docs
	$(RUN) -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs
	$(RUN) scripts/check_links.py build/docs

# Links to other sites; needs a network.
linkcheck: $(STAMP)-docs
	$(RUN) -m sphinx -b linkcheck -D plot_gallery=0 -d build/doctrees docs build/linkcheck

bench: $(STAMP)-bench
	$(RUN) -m benchmarks $(BENCH)

# Failures are reduced and written as tests to build/fuzz; FUZZ="--only weak --seed 3" passes options on.
fuzz: $(STAMP)-test
	FFO_NUM_THREADS=1 OMP_NUM_THREADS=1 $(RUN) -m fuzz --minutes $(MINUTES) --workers $(WORKERS) $(FUZZ)

# Packages that cannot be an extra: qpth declares numpy<2, CVXPY numpy>=2; qpth works with it nevertheless.
bench-peers: $(STAMP)-bench
	$(INSTALL) --no-deps qpth

clean:
	rm -rf $(VENV) $(LOWEST) build dist docs/gallery examples/output benchmarks/results .pytest_cache .mypy_cache .ruff_cache .hypothesis
