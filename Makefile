# make demo | make test: all a fresh clone needs. The rest is for the people who work here.
PYTHON ?= python3
BIN := .venv/bin
# small matrices on few cores: threads inside numpy only get in each other's way
export OPENBLAS_NUM_THREADS ?= 1
# two cores: one thread per test worker, two workers
TEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow flower-test check format constraints bench bench-setup combinations docs docs-serve \
  notebooks notebooks-test reproduce wheel-test fuzz clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.venv/.ready: constraints.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing the pinned packages into .venv (once; a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: .venv/.ready   ## run the quickstart and print the path of its report
	@$(BIN)/sightline run examples/quickstart.toml

test: .venv/.ready   ## the fast tests
	$(BIN)/python -m pytest -n $(TEST_WORKERS) -m "not slow"

test-slow: .venv/.ready   ## every test, the slow ones too
	$(BIN)/python -m pytest -n $(TEST_WORKERS)

.venv-flower/.ready: constraints-flower.txt pyproject.toml
	@test -x .venv-flower/bin/python || $(PYTHON) -m venv .venv-flower
	@echo "Installing Flower and Ray into .venv-flower (once; a few minutes) ..."
	@.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt "torch==2.13.0"
	@.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt -e ".[dev,flower]"
	@touch $@

flower-test: .venv-flower/.ready ## the tests on Flower: its simulation engine, and real processes on loopback
	FLWR_TELEMETRY_ENABLED=0 .venv-flower/bin/python -m pytest tests/flower

FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(notdir $(wildcard tests/fuzz/corpus/*))

.venv-fuzz/.ready: .venv/.ready tests/fuzz/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target .venv-fuzz -r tests/fuzz/requirements.txt
	@touch $@

fuzz: .venv-fuzz/.ready ## fuzz every reader of foreign files with atheris, FUZZ_SECONDS each; what breaks lies in .fuzz/
	@for target in $(FUZZ_TARGETS); do echo "$$target"; \
	  PYTHONPATH=.venv-fuzz:. $(BIN)/python -m tests.fuzz $$target $(FUZZ_SECONDS) > .fuzz-$$target.log 2>&1 \
	    || { tail -30 .fuzz-$$target.log; exit 1; }; \
	  grep -E "number_of_executed_units" .fuzz-$$target.log; done

browser:         ## install what the browser tests drive Chromium with (needs node and npm)
	cd tests/serve && npm install --no-package-lock --no-audit --no-fund

check: .venv/.ready  ## format, lint, types, then the fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(MAKE) --no-print-directory test

format: .venv/.ready ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-setup: .bench/.ready ## install the peers that the benchmarks compare with, in environments of their own

.bench/.ready: $(wildcard benchmarks/peers/requirements-*.txt)
	@for peer in pfl flwr pld; do \
	  test -x .bench/$$peer/bin/python || $(PYTHON) -m venv .bench/$$peer; \
	  grep -q torch benchmarks/peers/requirements-$$peer.txt && \
	    .bench/$$peer/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0; \
	  .bench/$$peer/bin/python -m pip install --quiet --disable-pip-version-check \
	    -r benchmarks/peers/requirements-$$peer.txt || exit 1; \
	done
	@touch $@

bench: .venv/.ready  ## run the benchmarks (quiet machine, please); fails when a goal is missed
	$(BIN)/python -m benchmarks

combinations: .venv/.ready ## ask every combination again and write docs/combinations.md
	$(BIN)/python -m tests.laws.table

notebooks: .venv/.ready  ## write docs/notebooks/ from docs/tutorials/
	$(BIN)/python docs/site/notebooks.py

.venv-notebooks/.ready: constraints.txt docs/site/requirements-notebooks.txt pyproject.toml
	@test -x .venv-notebooks/bin/python || $(PYTHON) -m venv .venv-notebooks
	@echo "Installing Sightline and a kernel into .venv-notebooks (once; a minute or two) ..."
	@.venv-notebooks/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	@.venv-notebooks/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . \
	  -r docs/site/requirements-notebooks.txt
	@touch $@

notebooks-test: .venv-notebooks/.ready ## execute every notebook in a real kernel
	PATH="$(CURDIR)/.venv-notebooks/bin:$$PATH" .venv-notebooks/bin/python tests/docs/execute_notebooks.py

docs: .venv-docs/.ready  ## build the docs site into site/
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet
	@echo "site/index.html"

reproduce: .venv/.ready ## run every experiment of the papers anew (about 90 minutes) and write docs/reproduction.md
	$(BIN)/python -m experiments

docs-serve: .venv-docs/.ready ## the docs site, rebuilt while you write
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs serve

.venv-docs/.ready: docs/requirements.txt
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

# a clone on the path would pass for the installed package, with pip too
wheel-test: export PYTHONPATH :=
wheel-test: .venv/.ready ## build the wheel, install it into an empty environment, run the quickstart there
	rm -rf build dist .venv-wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/sightline-*.whl
	cd .venv-wheel && bin/python ../tests/docs/wheel.py ../examples/quickstart.toml
	cd .venv-wheel && ../$(BIN)/mypy --strict --config-file= --python-executable bin/python ../tests/docs/typed.py

constraints: .venv/.ready ## write the installed versions back to constraints.txt
	@{ echo "# Exact versions that make demo, make test and CI use. Rebuild with: make constraints"; \
	   echo "torch==2.13.0"; $(BIN)/python -m pip freeze --exclude-editable | grep -v '^torch=='; } > constraints.tmp
	@mv constraints.tmp constraints.txt

clean:           ## remove the virtual environments, what was built, and caches
	rm -rf .venv .venv-docs .venv-flower .venv-notebooks .venv-wheel site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
