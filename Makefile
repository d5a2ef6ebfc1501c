# One door for developers. `make help` lists everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Thousands of processes start here: who compiles every module anew takes twice as long.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest
# Where the time goes, at the end of each run.
SLOWEST := --durations 40 --durations-min 5
# Each part says what it has to say at its end, in one piece.
SIDE_BY_SIDE := $(MAKE) --no-print-directory --keep-going --jobs --output-sync=target
CHECKS := style types contracts pages timing names prose
# Tests wait for servers and processes more than they compute: five or six at a time keep two cores busy.
# A unit test shares nothing with the others of its file, so any worker may take it.
workers-unit := -n 3 --dist worksteal
workers-integration := -n 5
workers-system := -n 6
workers-experiments :=
# pip would compile everything on one core, and with it the tests that packages bring along.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	-c constraints.txt
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(abspath $(VENV))/lib || true

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all unit ready peers check style types contracts pages timing names prose coverage bench lab docs clean

help: ## list what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

setup: $(VENV)/installed-all $(VENV)/spark-classes ## make .venv with everything for working on Tidegate

demo: $(VENV)/installed-demo ## the whole story in two minutes: load, harm, agreements, what Spark learns
	@$(BIN)/tidegate demo --report results/demo.html

test: ready ## all tests, on real peers, in 10 minutes: unit, integration, system
	@$(call run-stages,unit integration system,)

test-all: ready ## what `make test` runs, on every store and with long kills, and the experiments
	@$(call run-stages,unit integration system experiments,--all)

unit: $(VENV)/installed-all ## the tests that start no process: a minute
	@$(PYTEST) tests/unit $(workers-unit) -q

# Whatever fails, the other stages run: one run shows all there is to mend.
define run-stages
failed=; $(foreach stage,$(1),echo "== $(stage)"; \
$(PYTEST) tests/$(stage) $(workers-$(stage)) $(2) $(SLOWEST) || failed="$$failed $(stage)"; ) \
test -z "$$failed" || { echo "failed:$$failed"; exit 1; }
endef

# What Debian installs does not wait for what pip installs, which keeps one core busy.
ready:
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/spark-classes peers

# Making the environment may need Debian's packages, too.
peers: | $(VENV)/bin/python
	@scripts/debian-packages

coverage: export COVERAGE_FILE := $(abspath results/coverage/lines)
coverage: PYTEST := $(BIN)/python -m coverage run -m pytest
coverage: ready ## the lines of src/tidegate that `make test` runs, child processes measured
	@rm -rf $(dir $(COVERAGE_FILE)) && mkdir -p $(dir $(COVERAGE_FILE))
	@$(call run-stages,unit integration system,) || echo "The figure below is of a run that failed."
	@$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report

check: $(VENV)/installed-all ## linters, types, import contracts, docs, timed tests, names, prose: below a minute
	@$(SIDE_BY_SIDE) $(CHECKS)

style:
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .

types:
	@$(BIN)/mypy

contracts:
	@$(BIN)/lint-imports

pages:
	@$(BIN)/python scripts/docs --check

timing:
	@$(BIN)/python scripts/check_tests.py

names:
	@$(BIN)/python scripts/check_names.py

prose:
	@$(BIN)/python scripts/check_prose.py

bench: ready ## measure: our own figures, then a comparison with RabbitMQ, Redis and NATS
	@$(PYTEST) benchmarks
	@$(BIN)/tidegate bench compare

lab: $(VENV)/installed-all ## the Telesto experiments, with plots, under results/
	@$(BIN)/tidegate lab run telesto

docs: $(VENV)/installed-all ## rewrite the generated parts of the docs, and build them as a site: build/site
	@$(BIN)/python scripts/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Open build/site/index.html; with search: $(BIN)/python -m http.server --directory build/site"

clean: ## remove .venv, caches and results
	rm -rf $(VENV) results build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed again only when what is asked for has changed.
$(VENV)/bin/python:
	@echo "Making $(VENV)"
	@scripts/make-venv $(VENV) $(PYTHON)

$(VENV)/installed-demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Tidegate into $(VENV): a minute or two"
	@$(PIP_INSTALL) -e '.[node,spark,console]'
	@$(COMPILE)
	@touch $@

$(VENV)/installed-all: pyproject.toml lab/pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Tidegate with everything for development into $(VENV): two minutes or so"
	@$(PIP_INSTALL) -e '.[node,spark,console,docs,dev]' -e lab
	@$(COMPILE)
	@touch $(VENV)/installed-demo $@

# Some thirty Sparks start in the tests; each takes half as long. A Java that cannot do it is no harm.
$(VENV)/spark-classes: $(VENV)/installed-all
	@$(BIN)/python scripts/spark_classes.py || true
	@touch $@
