# Everything happens in .venv, which is made on first use. PYTHON chooses the interpreter it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CPU build of torch where the package index offers one for this version; newer ones pull gigabytes of CUDA libraries.
TORCH := torch==2.13.0
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Distributions of their own, each with its own settings for tests and types.
INTEGRATIONS := integrations/llama-index-llms-qvpic integrations/langchain-qvpic
IN = for each in $(INTEGRATIONS); do (cd $$each && $(CURDIR)/$(BIN)/$(1)) || exit 1; done

.PHONY: help demo eval-demo test test-all lint clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.demo ## Ingest the bundled documents, ask three questions, compare times to first token
	$(BIN)/qvpic demo --bank demo-bank

eval-demo: $(VENV)/.eval ## Measure all methods with the bundled reader; the report goes to docs/results/eval-demo
	$(BIN)/qvpic eval run --suite facts --kinds all --questions 40 --preset q1,q3 --timed 16 --out eval-demo
	$(BIN)/qvpic eval report eval-demo --out docs/results/eval-demo

test: $(VENV)/.test ## Run every test that is not marked slow, gpu or network
	$(BIN)/python -m pytest
	$(call IN,python -m pytest)

test-all: $(VENV)/.test ## Run the slow tests as well
	$(BIN)/python -m pytest -m "not gpu and not network"
	$(call IN,python -m pytest)

lint: $(VENV)/.dev ## Check formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(call IN,mypy)

clean: ## Remove the virtual environment, the demo's bank and its measurements
	rm -rf $(VENV) demo-bank eval-demo

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.torch
	$(INSTALL) -e '.[demo,docs]' $(INTEGRATIONS:%=-e %)
	@touch $@

$(VENV)/.eval: pyproject.toml $(VENV)/.torch
	$(INSTALL) -e '.[demo,eval]'
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.torch
	$(INSTALL) -e '.[test]' $(INTEGRATIONS:%=-e '%[test]')
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	$(INSTALL) -e '.[dev]' $(INTEGRATIONS:%=-e '%[test]')
	@touch $@
