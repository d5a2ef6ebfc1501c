# One door for developers. `make help` lists everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint bench lab docs clean

help: ## list what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

setup: $(VENV)/installed-all ## make .venv with everything for working on Tidegate

demo: $(VENV)/installed-demo ## start everything, let it work for 20 seconds, learn from it
	@$(BIN)/tidegate demo --report results/demo.html

test: $(VENV)/installed-all lint ## all tests, on real peers where they can be had
	@scripts/debian-packages
	@$(BIN)/python -m pytest

check: $(VENV)/installed-all lint ## linters, types, import contracts and fast tests, under a minute
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --ignore tests/pipeline -m "not peers and not slow and not faults and not spark"

lint: $(VENV)/installed-all
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/docs --check

bench: $(VENV)/installed-all ## compare with RabbitMQ, Redis and NATS on this machine
	@scripts/debian-packages
	@$(BIN)/tidegate bench compare

lab: $(VENV)/installed-all ## the Telesto experiments, with plots, under results/
	@$(BIN)/tidegate lab run telesto

docs: $(VENV)/installed-all ## rewrite the generated parts of the docs and check their links
	@$(BIN)/python scripts/docs

clean: ## remove .venv, caches and results
	rm -rf $(VENV) results build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed again only when what is asked for has changed.
$(VENV)/bin/python:
	@echo "Making $(VENV)"
	@scripts/make-venv $(VENV) $(PYTHON)

$(VENV)/installed-demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Tidegate into $(VENV)"
	@$(PIP_INSTALL) -e '.[spark]'
	@touch $@

$(VENV)/installed-all: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Tidegate with everything for development into $(VENV)"
	@$(PIP_INSTALL) -e '.[spark,lab,dev]'
	@touch $(VENV)/installed-demo $@
