# make quickstart   rank Triton configs on three GPUs, without having one
# make test         everything CI checks
# make models       fit the shipped models again from data/
# make mutation     change the laws in 300 places, one at a time: do the tests notice?
# All that is needed is Python 3.11 or newer; everything goes into $(VENV). Name another interpreter with PYTHON=...

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help quickstart test models mutation clean

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

quickstart: $(VENV)/.installed
	@for gpu in h100_sxm l20 a100_sxm; do \
		$(BIN)/perfmodel rank gemm --gpu $$gpu -m 4096 -n 14336 -k 4096 --dtype bf16 --top-k 8; echo; \
	done

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports
	@# one worker a core: threads of BLAS on top of that would only wait for one another
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

models: $(VENV)/.installed
	$(BIN)/python -m perfmodel.calibrate.build
	$(BIN)/python -m perfmodel.calibrate.build_operators
	$(BIN)/python -m perfmodel.calibrate.collective_build
	$(BIN)/python -m perfmodel.calibrate.build_runs

mutation: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutation/run.py --least 95

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
