# `make demo` and `make test` set up all they need in a fresh clone. They need python3 (3.11.4 or
# newer), make, and a network to the package index.

# The first Python that TensorFlow has wheels for; choose another with `make PYTHON=python3.12`.
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import sys; sys.exit(not (3, 11, 4) <= sys.version_info < (3, 14))' 2>/dev/null && echo $(name))))
BIN := .venv/bin
QUIETLY := --quiet --disable-pip-version-check

.DELETE_ON_ERROR:

.PHONY: help demo setup test test-slow test-all test-extras lint check docs format benchmark clean

help:
	@echo "make demo       prepare a corpus, train, evaluate, generate: a few minutes on 2 cores"
	@echo "make test       run the tests but those marked slow: some minutes on 2 cores"
	@echo "make test-slow  run the tests marked slow"
	@echo "make test-all   run all tests: both"
	@echo "make test-extras  run the tests of optional packages, which are installed into .venv-extras"
	@echo "make setup      install what developers need into .venv, with the pre-commit hook"
	@echo "make lint       check style, types and workflows"
	@echo "make check      lint and test: what to run before a commit"
	@echo "make docs       build the documentation site into site/"
	@echo "make format     format the code"
	@echo "make benchmark  measure training speed"
	@echo "make clean      remove .venv, .venv-extras, site and what the demo made"

demo: .venv/installed
	$(BIN)/python examples/demo.py

setup: .venv/installed-dev
	@if [ -e .git ]; then $(BIN)/pre-commit install; fi

RESULTS := --junitxml=build/tests
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(WORKERS)
# The longest first: both workers end at the same time.
MODEL_TESTS := $(addprefix tests/,training models causal_lm layers)
USE_TESTS := txl_tf $(addprefix tests/,language_model scoring generation exports lab apps examples programs)
NO_TESTS := $(addprefix tests/,__pycache__ conftest.py extras golden helpers soak)
OTHER_TESTS := tests/contract tests/release docs/site \
	$(filter-out tests/contract tests/release $(MODEL_TESTS) $(USE_TESTS) $(NO_TESTS),$(wildcard tests/*))

# These tests compile for longer than they compute. The golden numbers, in tests/contract, are
# computed by code that is compiled as users have it. XLA's newer generator of fused loops takes a
# third of the time.
QUICK_XLA := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"

test: .venv/installed-dev
	@status=0; \
	$(QUICK_XLA) $(PYTEST) -m "not slow" $(RESULTS)/fast-models.xml $(MODEL_TESTS) $(USE_TESTS) || status=1; \
	$(PYTEST) -m "not slow" $(RESULTS)/fast-others.xml $(OTHER_TESTS) || status=1; \
	exit $$status

# XLA keeps what it has compiled until its process ends: one process for all would take 20 GB.
test-slow: .venv/installed-dev
	@status=0; \
	$(QUICK_XLA) $(PYTEST) -m slow $(RESULTS)/models.xml $(MODEL_TESTS) || status=1; \
	$(QUICK_XLA) $(PYTEST) -m slow $(RESULTS)/use.xml $(USE_TESTS) || status=1; \
	$(PYTEST) -m slow $(RESULTS)/others.xml $(OTHER_TESTS) || status=1; \
	exit $$status

test-all: test test-slow

# What only the extras can import.
EXTRA_MODULES := txl_tf/apps
# The extras have an environment of their own: what they need may be older than what others need.
test-extras: .venv-extras/installed
	.venv-extras/bin/python -m pytest $(WORKERS) $(RESULTS)/extras.xml tests/extras $(EXTRA_MODULES)

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

check: lint test

docs: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: .venv/installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

benchmark: .venv/installed
	$(BIN)/python -m benchmarks.train_step

clean:
	rm -rf .venv .venv-extras data/pydoc runs/demo site

.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11.4 or newer, up to 3.13, is needed, and none is on the PATH." >&2; exit 1; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: on Debian, apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml setup.py
	$(BIN)/pip install $(QUIETLY) -e '.[lab]'
	@touch $@

.venv-extras/installed: .venv/bin/python pyproject.toml setup.py
	.venv/bin/python -m venv .venv-extras
	.venv-extras/bin/pip install $(QUIETLY) -e '.[test-extras]'
	@touch $@

.venv/installed-dev: .venv/bin/python pyproject.toml setup.py
	$(BIN)/pip install $(QUIETLY) -e '.[dev]'
	@touch $@ .venv/installed
