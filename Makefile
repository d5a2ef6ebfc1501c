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
LINT := style types contracts pages
# More than there are cores: most of a quick test is waiting.
QUICK := quick-1 quick-2 quick-3 quick-4 quick-5 quick-6
# pip would compile everything on one core, and with it the tests that packages bring along.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	-c constraints.txt
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(abspath $(VENV))/lib || true

.DEFAULT_GOAL := help
.PHONY: help setup demo test peers check lint style types contracts pages bench lab docs clean

help: ## list what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

setup: $(VENV)/installed-all $(VENV)/spark-classes ## make .venv with everything for working on Tidegate

demo: $(VENV)/installed-demo ## the whole story in two minutes: load, harm, agreements, what Spark learns
	@$(BIN)/tidegate demo --report results/demo.html

test: ## all tests, on real peers where they can be had
	@# What Debian installs does not wait for what pip installs, which keeps one core busy.
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/spark-classes peers
	@# Whatever fails, the rest runs: one run shows all there is to mend.
	@# Tests wait more than they compute: three at a time keep two cores busy, and what they leave the
	@# linters take. Kills under load need room beside them, and so does what measures rates; what
	@# measures how late something is has the whole machine.
	@rm -f .pytest_cache/failures.json; failed=; \
	nice $(SIDE_BY_SIDE) $(LINT) & linting=$$!; \
	$(PYTEST) --stage crowd -n 3 --dist loadfile $(SLOWEST) || failed="$$failed crowd"; \
	wait $$linting && linted=yes || linted=; \
	$(PYTEST) --stage kills -n 2 --dist loadfile $(SLOWEST) || failed="$$failed kills"; \
	$(PYTEST) --stage paced -n 2 --dist loadfile $(SLOWEST) || failed="$$failed paced"; \
	$(PYTEST) --stage alone $(SLOWEST) || failed="$$failed alone"; \
	test -n "$$linted" || { echo "failed: lint$$failed"; exit 1; }; \
	test -z "$$failed" || { echo "failed at first:$$failed"; $(BIN)/python tests/second_look.py; }

# Making the environment may need Debian's packages, too.
peers: | $(VENV)/bin/python
	@scripts/debian-packages

check: $(VENV)/installed-all ## linters, types, import contracts and quick tests: about a minute
	@$(SIDE_BY_SIDE) $(LINT) $(QUICK)

lint: $(VENV)/installed-all
	@$(SIDE_BY_SIDE) $(LINT)

style:
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .

types:
	@$(BIN)/mypy

contracts:
	@$(BIN)/lint-imports

pages:
	@$(BIN)/python scripts/docs --check

quick-%:
	@$(PYTEST) -q --stage quick --part $*/$(words $(QUICK)) --hypothesis-profile hasty

bench: $(VENV)/installed-all peers ## compare with RabbitMQ, Redis and NATS on this machine
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
	@$(PIP_INSTALL) -e '.[spark,console,http]'
	@$(COMPILE)
	@touch $@

$(VENV)/installed-all: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Tidegate with everything for development into $(VENV): two minutes or so"
	@$(PIP_INSTALL) -e '.[spark,lab,console,docs,dev]'
	@$(COMPILE)
	@touch $(VENV)/installed-demo $@

# Some thirty Sparks start in the tests; each takes half as long. A Java that cannot do it is no harm.
$(VENV)/spark-classes: $(VENV)/installed-all
	@$(BIN)/python -m tidegate.pipeline.write_class_archive || true
	@touch $@
