# Two commands do everything: `make run` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = true

.PHONY: run test gpu-test check bench docs notebooks screenshots site web dist dist-check lock checkpoints help clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: .venv/base  ## set up (no torch) and show what works offline
	@PATH="$(CURDIR)/$(BIN):$$PATH" runs/demo.sh

test: check  ## set up everything, check, and run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

gpu-test: .venv/all  ## the tests that need a GPU, with a torch for CUDA installed in .venv
	$(BIN)/python -m pytest -n 0 tests/gpu

check: .venv/all  ## format, lint, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --strict --allow-untyped-calls --follow-imports=silent tests/typed_program.py $$($(BIN)/python tests/public_modules.py)
	$(BIN)/lint-imports

checkpoints: .venv/all  ## fetch real ALBERT checkpoints for more tests (network)
	$(BIN)/python tests/fetch_checkpoints.py

web: .venv/base  ## fetch onnxruntime-web for export --web, and for tests in Chromium (npm)
	$(BIN)/python tests/web/fetch_onnxruntime_web.py

BENCH ?= --quick
bench: .venv-bench/all  ## every benchmark beside its peers, one report (about twenty minutes; BENCH= for hours)
	.venv-bench/bin/python bench/report.py $(BENCH)

docs: .venv/all  ## rewrite the generated parts of README and docs
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/dependencies.py
	$(BIN)/python docs/tutorial.py

notebooks: .venv/all  ## run the notebooks of examples/ and keep their pictures
	cd examples && ../$(BIN)/jupyter-execute --inplace *.ipynb

screenshots: .venv/all  ## pictures of the server's page, in docs/images (needs Chromium)
	$(BIN)/python docs/screenshots.py

site: .venv-site/all web  ## the docs as a site, with a demo in the browser, in site/
	for model in small small-zh; do $(BIN)/python -m albertkit export $$model --web build/demo/$$model --force; done
	.venv-site/bin/python docs/build_site.py

dist: .venv/all  ## wheels (compiled, and for any platform), sdist and bill of materials (SBOM), in dist/
	rm -rf dist
	$(BIN)/python -m hatchling build
	ALBERTKIT_NATIVE=0 $(BIN)/python -m hatchling build -t wheel
	$(BIN)/python docs/sbom.py "$$(ls dist/*.whl | tail -n 1)"
	$(BIN)/python -m pytest tests/test_wheel.py tests/test_supply_chain.py

dist-check: dist  ## the wheel in empty environments, alone and with all extras (network)
	.ci/dist-check

LOCK := .venv-lock/bin/uv pip compile -q --universal --python-version 3.10 --generate-hashes --no-annotate --custom-compile-command 'make lock' -c constraints.txt
lock: .venv-lock/all  ## requirements/: the versions of constraints.txt with the hashes of all their files (network)
	$(LOCK) -o requirements/base.txt pyproject.toml
	$(LOCK) -o requirements/frozen.txt --extra frozen pyproject.toml
	$(LOCK) -o requirements/serve.txt --extra serve pyproject.toml
	$(LOCK) -o requirements/build.txt --group build

clean:  ## remove what was set up
	rm -rf .venv .venv-bench .venv-lock .venv-site build site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv-bench/all: pyproject.toml bench/constraints.txt
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install -q -c constraints.txt pip
	.venv-bench/bin/python -m pip install -q -c bench/constraints.txt -e '.[train,serve]' --group bench
	touch $@

.venv-site/all: pyproject.toml constraints.txt
	test -x .venv-site/bin/python || $(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip install -q -c constraints.txt pip
	.venv-site/bin/python -m pip install -q -c constraints.txt --group site
	touch $@

.venv-lock/all: pyproject.toml constraints.txt
	test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install -q -c constraints.txt pip
	.venv-lock/bin/python -m pip install -q -c constraints.txt --group lock
	touch $@

.venv/pip: requirements/build.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --require-hashes -r requirements/build.txt
	touch $@

.venv/base: .venv/pip pyproject.toml requirements/frozen.txt requirements/serve.txt hatch_build.py $(wildcard src/albertkit/native/*.[ch])
	$(BIN)/python -m pip install -q --require-hashes -r requirements/frozen.txt -r requirements/serve.txt
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

.venv/all: .venv/base constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[all]' --group dev
	touch $@
