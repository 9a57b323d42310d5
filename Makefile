# `make demo` and `make test` need Python 3.10 or newer and nothing else.
IS_NEW := import sys; sys.exit(sys.version_info < (3, 10))
PYTHON ?= $(shell for name in python3.11 python3 python3.13 python3.12 python3.10; do \
	$$name -c '$(IS_NEW)' 2>/dev/null && echo $$name && break; done)
BIN := .venv/bin
# One thread a test process: two processes with two threads each only get in each other's way.
TEST_WORKERS ?= 2

# hiv.csv, or a packed file of it, where there is one; else its shape twin is measured.
HIV ?= $(wildcard ../shared/data/hiv.csv)

.PHONY: demo test lint bench clean

demo: .venv/package
	$(BIN)/grant-fast compare gen-reg --graphs 2000 --seeds 3 --out runs/demo --overwrite

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal

# On one thread, in about 10 minutes; leave the machine alone meanwhile.
bench: .venv/development
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.device --device cpu --out benchmarks/results/cpu --minutes 9.8 $(if $(HIV),--hiv $(HIV))
	$(BIN)/python -m benchmarks.readme

lint: .venv/development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# constraints.txt pins what a fresh install gets to the versions that were tested together.
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard kernels/cpu/*)
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

.venv/package: $(SOURCES) | .venv/bin/pip
	$(INSTALL) .
	@touch $@

.venv/development: $(SOURCES) | .venv/bin/pip
	$(INSTALL) '.[dev]'
	@touch $@ .venv/package

.venv/bin/pip:
	@test -n "$(PYTHON)" && $(PYTHON) -c '$(IS_NEW)' || { echo \
		"error: Python 3.10 or newer is needed: install it, or name it, as make demo PYTHON=python3.12" \
		>&2; exit 1; }
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build dist *.egg-info runs
