# Everything runs from .venv, which is made on first use and again when pyproject.toml changes.
# `make` alone lists the targets; CONTRIBUTING.md explains the variables.

PYTHON ?= python3
TORCH ?= torch==2.13.0
PIP_ARGS ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS)

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint format bench profile clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY) ## Make .venv with everything in it

demo: $(READY) ## Speculation off, fixed and adaptive, side by side (a few minutes)
	$(BIN)/turbospec bench --quick $(ARGS)

test: $(READY) ## Run the tests (ARGS="-k guard" to choose)
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(READY) ## Mend style in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## The full table of policies and workloads
	$(BIN)/turbospec bench $(ARGS)

profile: $(READY) ## Measure this machine's step times and fit the latency model
	$(BIN)/turbospec profile $(ARGS)

clean: ## Remove .venv and every cache
	rm -rf $(VENV) dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first, by itself, so that TORCH and PIP_ARGS can name another build of it.
# Debian's Python has no ensurepip; there pip is installed from outside the environment.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: TurboSpec needs Python 3.11 or newer; name one with 'make PYTHON=/path/to/python3.11'" >&2; exit 1; }
	@echo "Installing into $(VENV); the first time takes a few minutes."
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install pip; }
	$(PIP) '$(TORCH)'
	$(PIP) -e '.[engine,dev]'
	@touch $@
