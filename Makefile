# `make check` and `make test` need nothing but Python (3.10 or later) and make.
#
#   PYTHON=python3.12 make test      another interpreter
#   make test ARGS='-k planner -x'   arguments for pytest

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
# No build isolation: setuptools is pinned and installed like everything else.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation
CHECKED := vllm==0.30.0
# One release for each way in which old ones differ most.
OLD := vllm==0.18.1 vllm==0.22.1
TESTED := $(OLD) vllm==0.26.0 vllm==0.29.0 vllm==0.30.0 vllm==0.32.0 vllm==0.33.0

# Folders as well as files: removing a file touches its folder.
SOURCES := $(shell find model spec impl oracle scenarios -name __pycache__ -prune -o -print)

.DEFAULT_GOAL := help
.PHONY: help install check test mutants lint clean
.DELETE_ON_ERROR:

help:
	@echo 'make check    check the reference engine and $(CHECKED) against the model'
	@echo 'make test     run all tests, with all the releases of vLLM that they need'
	@echo 'make mutants  is every small change of the machine noticed?'
	@echo 'make lint     ruff, mypy, import-linter'
	@echo 'make install  the command $(BIN)/kvoracle, with everything the above need'
	@echo 'make clean    remove $(VENV) and build outputs (installed engines stay)'

install: $(VENV)/installed

check: install
	$(call install-engines,$(CHECKED))
	$(BIN)/kvoracle check --engine impl $(CHECKED:%=--engine %)

test: install
	$(call install-engines,$(TESTED))
	$(BIN)/pytest --numprocesses=auto --require-engines $(ARGS)

mutants: install
	$(BIN)/kvoracle mutants

lint: install
	$(BIN)/ruff check
	$(BIN)/mypy -p kvoracle.model -p kvoracle.spec -p kvoracle.impl -p kvoracle.oracle
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build kvoracle.egg-info

# Engines live in the user's cache, outside the environment; those present are left as they are.
define install-engines
@set -e; for engine in $(1); do $(BIN)/kvoracle engines install $$engine; done
endef

# A plain install: type checkers do not follow the import hooks of an editable one. What an
# earlier build left in build/ would be packaged again, deleted modules included.
$(VENV)/installed: $(VENV)/dependencies setup.py $(SOURCES)
	@rm -rf build
	@$(INSTALL) --no-deps --force-reinstall .
	@touch $@

$(VENV)/dependencies: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing into $(VENV) (about a minute)'
	@rm -rf build
	@$(INSTALL) --constraint constraints.txt setuptools
	@$(INSTALL) --constraint constraints.txt '.[impl,test,dev]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "kvoracle needs Python 3.10 or later; set PYTHON=")'
	@$(PYTHON) -m venv --clear $(VENV)
