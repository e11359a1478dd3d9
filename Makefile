# make demo and make test are all that a fresh machine needs: Python 3.11+, a C++ compiler, make.
#   PYTHON=python3.12   which interpreter the virtual environment is made from
#   PIP_ARGS=...        further arguments for pip, such as an index that has CPU-only torch

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
RUN := $(VENV)/bin

.PHONY: demo test lint golden bench clean

demo: $(VENV)/.base
	$(RUN)/bpc train specs/digits_mlp.yaml

test: lint
	$(RUN)/python -m pytest

lint: $(VENV)/.dev
	$(RUN)/ruff check .
	$(RUN)/mypy

bench: $(VENV)/.bench
	$(RUN)/python benchmarks/compare.py mlp

golden: $(VENV)/.dev
	$(RUN)/python -m pytest --update-golden

clean:
	rm -rf $(VENV) build bpc.egg-info .pytest_cache .mypy_cache .ruff_cache runs

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "bpc needs Python 3.11 or newer; try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# A stamp is written only after its installation succeeded, and is stale once the wishes change.
$(VENV)/.base: pyproject.toml setup.py | $(VENV)/bin/python
	$(RUN)/python -m pip install --quiet $(PIP_ARGS) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml setup.py | $(VENV)/bin/python
	$(RUN)/python -m pip install --quiet $(PIP_ARGS) --editable '.[dev]'
	@touch $@ $(VENV)/.base

$(VENV)/.bench: pyproject.toml setup.py | $(VENV)/bin/python
	$(RUN)/python -m pip install --quiet $(PIP_ARGS) --editable '.[bench]'
	@touch $@ $(VENV)/.base
