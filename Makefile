# gatekeeper: `make demo` and `make test` set up all they need inside this folder.
# Works from any folder: make -C path/to/gatekeeper demo

ROOT   := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
VENV   := $(ROOT)/.venv
BIN    := $(VENV)/bin
HOME_DIR ?= $(ROOT)/.gatekeeper
PORT   ?= 8321
STAGE  ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export GATEKEEPER_TEST_CACHE ?= $(ROOT)/.cache/models

# Of some 18,000 files a run imports a few thousand: compiling those as they are needed is half the wait.
# Many container images tell Python to keep nothing compiled, and every process would do it again.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = $(BIN)/python -m pip install --quiet --no-compile --constraint $(ROOT)/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo demo-clean serve profile test lint verify clean

help: ## Show the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(ROOT)/Makefile

$(VENV)/.base:
	@for python in $(PYTHON) python3 python3.11 python3.12 python3.13; do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  $$python -c 'import ensurepip' 2>/dev/null || { \
	    echo "$$python has no venv module: sudo apt-get install -y python3-venv" >&2; exit 2; }; \
	  $$python -m venv $(VENV) && touch $@ && exit 0; \
	done; echo "No Python 3.11 or newer found: make PYTHON=/path/to/python3.11 ..." >&2; exit 2

# Only what `gatekeeper profile` needs: seconds, so the first answer comes before the heavy install.
$(VENV)/.profile: $(VENV)/.base $(ROOT)/pyproject.toml $(ROOT)/constraints.txt
	@$(PIP_INSTALL) click rich opentelemetry-proto hatchling editables
	@$(PIP_INSTALL) --no-build-isolation --no-deps --editable $(ROOT)
	@touch $@

$(VENV)/.demo: $(VENV)/.profile
	@echo "Installing the control plane and the reference engine (torch, once) ..."
	@$(PIP_INSTALL) --no-build-isolation --editable '$(ROOT)[torch,otel]'
	@touch $@

$(VENV)/.test: $(VENV)/.profile
	@echo "Installing the control plane, the reference engine and the test tools (once) ..."
	@$(PIP_INSTALL) --no-build-isolation --editable '$(ROOT)[torch,dev]'
	@touch $@ $(VENV)/.demo

profile: $(VENV)/.profile ## Profile the shipped example trace
	@$(BIN)/gatekeeper profile $(ROOT)/gatekeeper/examples/essay-trace.json

demo: profile $(VENV)/.demo ## From an artifact to a decision on a real model
	@$(BIN)/gatekeeper demo --home $(HOME_DIR)

demo-clean: ## Remove all that the demo made: models, database, evidence
	rm -rf $(HOME_DIR)

serve: $(VENV)/.demo ## Serve the demo's home
	@$(BIN)/gatekeeper serve --home $(HOME_DIR) --port $(PORT)

test: $(VENV)/.test ## Everything: lint, types, contracts, tests
	@bash $(ROOT)/tests/run.sh $(VENV)

lint: $(VENV)/.test ## Ruff, mypy and the import contracts
	@cd $(ROOT) && $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

verify: $(VENV)/.test ## Long, resumable stages: make verify STAGE=equivalence
	@cd $(ROOT) && $(BIN)/python benchmarks/verify.py $(STAGE)

clean: ## Remove the environment and caches
	rm -rf $(VENV) $(ROOT)/.cache $(ROOT)/.mypy_cache $(ROOT)/.ruff_cache $(ROOT)/.pytest_cache
