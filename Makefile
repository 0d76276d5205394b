# Everything a contributor runs. Needs Python 3.11 or newer, make and g++; the rest goes into .venv.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SETUP := pyproject.toml setup.py constraints.txt
SOURCES := uif_tvm targets schedules relay_passes tuning_logs
TREE := build/tree
JOBS ?= 2

# Narrow `make bench` down, e.g. MODELS="resnet50 minilm_l6_128" THREADS=1 ROUNDS=5
MODELS ?=
THREADS ?= 1 2
ROUNDS ?= 12
# How many models `make fuzz` damages (3000) or graphs `make fuzz-graphs` makes (2000), and which,
# e.g. COUNT=500 SEED=3
COUNT ?=
SEED ?= 0
# Another folder of cases for `make cases`
CASES ?= tests/cases/registry
# Another registry for `make architectures`, and which of its entries, e.g. NAMES="bert llama"
ARCHS ?= tests/architectures/hf_archs.py
NAMES ?=
# Another list of models for `make corpus`, and which of them, e.g. IDS="ppocr_v4_rec magika_v3_3"
CORPUS ?= tests/corpus/corpus.json
LEVELS ?= 2 3
# DYNAMIC=1: models with several inputs also once with open axes, which must be right for all of them
DYNAMIC ?=
IDS ?=
# Part of `make onnx-backend` and `make torch-ops`: every N-th from the I-th (I/N), what matches
SHARD ?= 0/1
FILTER ?=

.PHONY: help
help: ## Show this text
	@echo 'Targets (reports go to build/reports):'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One stamp per set of extras, so that a second run installs nothing.
$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'error: Python 3.11 or newer is needed; run: make PYTHON=/path/to/python3.11' >&2; exit 4; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo 'error: cannot make a virtual environment; on Debian: apt-get install python3-venv' >&2; \
	  exit 4; }

$(VENV)/.installed-%: $(PY) $(SETUP)
	@echo "installing uif[$*] into $(VENV) ..." >&2
	@$(PIP) --editable '.[$*]'
	@touch $@

.PHONY: demo
demo: $(VENV)/.installed-demo ## Compile a trained OCR model and read a line of text with it
	@$(PY) examples/demo.py

.PHONY: test
test: $(VENV)/.installed-dev ## Run all tests
	@$(PY) -m pytest -n $(JOBS) --dist loadfile

.PHONY: lint
lint: $(VENV)/.installed-dev tree ## Check style and layering
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@cd $(TREE) && $(CURDIR)/$(VENV)/bin/lint-imports --no-logo $(CURDIR)/pyproject.toml

.PHONY: types
types: $(VENV)/.installed-dev tree ## Check types
	@cd $(TREE) && $(CURDIR)/$(PY) -m mypy --no-incremental \
	  --config-file $(CURDIR)/pyproject.toml uif_tvm

# The layout as it is installed, made of links, for tools that do not know package-dir.
.PHONY: tree
tree:
	@rm -rf $(TREE) && mkdir -p $(TREE)
	@cp -rs "$(CURDIR)/uif_tvm" $(TREE)/
	@for part in $(filter-out uif_tvm,$(SOURCES)); do \
	  cp -rs "$(CURDIR)/$$part" $(TREE)/uif_tvm/; done

.PHONY: bench
bench: $(VENV)/.installed-bench ## Compare speed with ONNX Runtime and OpenVINO
	@$(PY) -m uif_tvm.bench.peers --models '$(MODELS)' --threads '$(THREADS)' --rounds $(ROUNDS)

.PHONY: corpus
corpus: $(VENV)/.installed-dev ## Run real trained models and compare with references
	@$(PY) -m tests.corpus.check --corpus '$(CORPUS)' --levels '$(LEVELS)' \
	  --modes 'static$(if $(DYNAMIC), dynamic auto)' $(IDS)

.PHONY: coverage-table
coverage-table: $(VENV)/.installed-dev ## Put the latest reports into the README
	@$(PY) -m tests.coverage.table

.PHONY: cases
cases: $(VENV)/.installed-dev ## Run small inputs that once failed somewhere
	@$(PY) -m tests.cases.check --cases '$(CASES)' $(IDS)

.PHONY: onnx-backend
onnx-backend: $(VENV)/.installed-dev ## Run ONNX's own node tests, and ONNX Runtime on the same
	@$(PY) -m tests.onnx_backend.sweep --jobs $(JOBS) --shard '$(SHARD)' --filter '$(FILTER)'

.PHONY: torch-ops
torch-ops: $(VENV)/.installed-dev ## Run samples of PyTorch's operator database
	@$(PY) -m tests.torch_ops.check --jobs $(JOBS) --shard '$(SHARD)' --ops '$(FILTER)'

.PHONY: architectures
architectures: $(VENV)/.installed-dev ## Compare models of transformers with eager PyTorch
	@$(PY) -m tests.architectures.check --archs '$(ARCHS)' --jobs $(JOBS) $(NAMES)

.PHONY: fuzz
fuzz: $(VENV)/.installed-dev ## Damage models in thousands of ways; findings go to build/fuzz
	@$(PY) -m tests.fuzz.check --count $(or $(COUNT),3000) --seed $(SEED)

.PHONY: minimalloc
minimalloc: $(VENV)/.installed-dev ## Fit published hard memory plans, and say how long each took
	@$(PY) -m tests.compiler.memory.minimalloc $(NAMES)

.PHONY: fuzz-graphs
fuzz-graphs: $(VENV)/.installed-dev ## Random graphs at every level against level 0; findings go to build/fuzz
	@$(PY) -m tests.fuzz.graphs.check --count $(or $(COUNT),2000) --seed $(SEED) --jobs $(JOBS)

.PHONY: memory-report
memory-report: $(VENV)/.installed-dev ## Memory and kernels of all models beside the bound and other engines
	@$(PY) -m tests.memory.check --levels '$(LEVELS)' $(IDS)

.PHONY: clean
clean: ## Remove build products, but neither .venv nor downloaded models
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
