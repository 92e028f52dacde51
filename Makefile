# Two commands do everything: `make run` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = true

.PHONY: run test check bench docs checkpoints help clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: .venv/base  ## set up (no torch) and show what works offline
	@PATH="$(CURDIR)/$(BIN):$$PATH" runs/demo.sh

test: check  ## set up everything, check, and run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/all  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

checkpoints: .venv/all  ## fetch real ALBERT checkpoints for more tests (network)
	$(BIN)/python tests/fetch_checkpoints.py

bench: .venv-bench/all  ## side by side with peers (about ten minutes)
	.venv-bench/bin/python bench/inference.py

docs: .venv/all  ## rewrite the generated parts of README and docs
	$(BIN)/python docs/generate.py

clean:  ## remove what was set up
	rm -rf .venv .venv-bench .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv-bench/all: pyproject.toml
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install -q --upgrade pip
	.venv-bench/bin/python -m pip install -q torch==$$(sed -n 's/^torch==//p' constraints.txt) -e '.[train]' --group bench
	touch $@

.venv/pip: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt pip
	touch $@

.venv/base: .venv/pip pyproject.toml
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

.venv/all: .venv/base
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[all]' --group dev
	touch $@
