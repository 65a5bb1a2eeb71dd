# make quickstart   rank Triton configs on three GPUs, without having one
# make test         everything CI checks; it builds the book, too
# make portability  the tests as on other processors, core counts, languages and umasks
# make hostile      20,000 hostile inputs to the whole public interface
# make docs         build the book into build/site
# make figures      render the tables and outputs of README.md and docs/ again from what is stored
# make mutation     change the laws in 300 places, one at a time: do the tests notice?
# make models       fit the shipped models again from data/
# All that is needed is Python 3.11 or newer; everything goes into $(VENV). Name another interpreter with PYTHON=...

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help quickstart test portability hostile docs figures mutation models clean

VENV ?= .venv
# 3.11 first: the version the tests' torch build is most often at hand for
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found: install one, or name it: make PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# Stamps: the second call installs nothing.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml requirements-dev.txt | $(BIN)/python
	$(PIP) --editable '.[dev,plot]' --requirement requirements-dev.txt
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[docs]'
	@touch $@ $(VENV)/.installed

quickstart: $(VENV)/.installed
	@for gpu in h100_sxm l20 a100_sxm; do \
		$(BIN)/perfmodel rank gemm --gpu $$gpu -m 4096 -n 14336 -k 4096 --dtype bf16 --top-k 8; echo; \
	done

test: $(VENV)/.installed-dev docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/mypy --strict docs/tools
	$(BIN)/lint-imports
	@# one worker a core: threads of BLAS on top of that would only wait for one another
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

portability: $(VENV)/.installed-dev
	$(BIN)/python tests/portability.py

hostile: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile --cases 20000

# mkdocs-material prints a notice about another program's future; NO_MKDOCS_2_WARNING is its own switch for it
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

figures: $(VENV)/.installed-docs
	$(BIN)/python docs/tools/picture.py
	$(BIN)/python docs/tools/render.py

models: $(VENV)/.installed-dev
	$(BIN)/python -m perfmodel.fit.kernel_models
	$(BIN)/python -m perfmodel.fit.operator_models
	$(BIN)/python -m perfmodel.fit.collective_models
	$(BIN)/python -m perfmodel.fit.run_models

mutation: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutation/run.py --least 95

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
