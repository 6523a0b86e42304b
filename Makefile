# make demo | make test: all a fresh clone needs. The rest is for the people who work here.
PYTHON ?= python3

# an interpreter that is named has environments of its own: make test PYTHON=python3.13 lives in .venv-3.13
version_of = $(shell "$(1)" -c "import sys; print('%d.%d' % sys.version_info[:2])" 2>/dev/null)
ifneq ($(PYTHON),python3)
SUFFIX := -$(or $(call version_of,$(PYTHON)),none)
endif
VENV := .venv$(SUFFIX)
BIN := $(VENV)/bin
FLOWER := .venv-flower$(SUFFIX)
NOTEBOOKS := .venv-notebooks$(SUFFIX)
DOCS := .venv-docs$(SUFFIX)
WHEEL := .venv-wheel$(SUFFIX)
FUZZ := .venv-fuzz$(SUFFIX)
HF := .venv-hf$(SUFFIX)
# an environment at $(1), unless it is there; a Python that is too old is told in one line before anything is made
TOO_OLD := 2.% 3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8 3.9 3.10
need_python = $(if $(filter $(TOO_OLD) none,$(or $(call version_of,$(1)),none)),$(error $(1) is \
  $(if $(call version_of,$(1)),Python $(call version_of,$(1)),not a Python that runs) and Sightline needs 3.11 or newer; $(2)))
make_venv = $(if $(wildcard $(1)/bin/python),$(call need_python,$(1)/bin/python,remove $(1)),$(call \
  need_python,$(PYTHON),name one as in: make $(firstword $(MAKECMDGOALS)) PYTHON=python3.12))test -x $(1)/bin/python || \
  "$(PYTHON)" -m venv $(1)

# the pinned files of $(2) and no other, by their hashes, into the environment $(1). Torch comes alone: the file that pip
# takes is checked, then its own pins bring the CUDA libraries where it is the CUDA build, and nothing where it is not
PIP_OPTIONS := --quiet --disable-pip-version-check
HASHED := $(PIP_OPTIONS) --require-hashes --no-deps
install_pinned = $(1)/bin/python -m pip install $(HASHED) $(patsubst %,-r %,$(2)) && \
  $(1)/bin/python -m pip download $(PIP_OPTIONS) --no-deps --dest $(1)/torch "torch==2.13.0" && \
  $(1)/bin/python -m pip install $(HASHED) --no-index --find-links $(1)/torch -r constraints-torch.txt && \
  rm -r $(1)/torch && $(1)/bin/python -m pip install $(PIP_OPTIONS) "torch==2.13.0"
# the clone itself, built by the pinned setuptools
install_clone = $(1)/bin/python -m pip install $(PIP_OPTIONS) --no-deps --no-build-isolation -e .

# small matrices on few cores: threads inside numpy only get in each other's way
export OPENBLAS_NUM_THREADS ?= 1
# two cores: one thread per test worker, two workers
TEST_WORKERS ?= 2
PYTEST_OPTIONS := -n $(TEST_WORKERS) --durations=10
# bytecode is kept, whatever the environment says: every process that a test starts would compile the package again
test test-slow flower-test hf-test: export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow flower-test hf-test browser check lint format constraints bench bench-setup combinations docs docs-serve \
  notebooks notebooks-test reproduce wheel-test fuzz papers-test planted size clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.ready: constraints.txt constraints-torch.txt pyproject.toml
	@$(call make_venv,$(VENV))
	@echo "Installing the pinned packages into $(VENV) (once; a minute or two) ..."
	@$(call install_pinned,$(VENV),constraints.txt)
	@$(call install_clone,$(VENV))
	@touch $@

demo: $(VENV)/.ready   ## run the quickstart and print the path of its report
	@$(BIN)/sightline run examples/quickstart.toml

test: $(VENV)/.ready   ## the fast tests
	$(BIN)/python -m pytest $(PYTEST_OPTIONS) --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: $(VENV)/.ready   ## the slow tests, and only those
	$(BIN)/python -m pytest $(PYTEST_OPTIONS) --dist loadgroup -m slow

$(FLOWER)/.ready: constraints-flower.txt constraints-torch.txt pyproject.toml
	@$(call make_venv,$(FLOWER))
	@echo "Installing Flower and Ray into $(FLOWER) (once; a few minutes) ..."
	@$(call install_pinned,$(FLOWER),constraints-flower.txt)
	@$(call install_clone,$(FLOWER))
	@touch $@

flower-test: $(FLOWER)/.ready ## the tests on Flower: its simulation engine, and real processes on loopback
	FLWR_TELEMETRY_ENABLED=0 $(FLOWER)/bin/python -m pytest $(PYTEST_OPTIONS) --dist loadfile tests/flower

# only what the pinned packages lack, in a folder that is put before them: torch is not installed twice
$(HF)/.ready: $(VENV)/.ready constraints-hf.txt
	@echo "Installing transformers and peft into $(HF) (once) ..."
	@$(BIN)/python -m pip install $(HASHED) --upgrade --target $(HF)/site-packages \
	  -r constraints-hf.txt
	@touch $@

hf-test: $(HF)/.ready ## the tests with models of Hugging Face, made from their configurations
	PYTHONPATH=$(HF)/site-packages $(BIN)/python -m pytest $(PYTEST_OPTIONS) --dist loadfile -k hugging_face \
	  tests/training/test_graph_clipping.py

FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(notdir $(wildcard tests/fuzz/corpus/*))

$(FUZZ)/.ready: $(VENV)/.ready tests/fuzz/requirements.txt
	@$(BIN)/python -m pip install $(HASHED) --upgrade --target $(FUZZ) \
	  -r tests/fuzz/requirements.txt
	@touch $@

fuzz: $(FUZZ)/.ready ## fuzz every reader of foreign files with atheris, FUZZ_SECONDS each; what breaks lies in .fuzz/
	@for target in $(FUZZ_TARGETS); do echo "$$target"; \
	  PYTHONPATH=$(FUZZ):. $(BIN)/python -m tests.fuzz $$target $(FUZZ_SECONDS) > .fuzz-$$target.log 2>&1 \
	    || { tail -30 .fuzz-$$target.log; exit 1; }; \
	  grep -E "number_of_executed_units" .fuzz-$$target.log; done

papers-test: $(VENV)/.ready ## the tests of papers/: every figure has its file, pages are current, published formulas
	$(BIN)/python -m pytest $(PYTEST_OPTIONS) --dist loadfile papers/tests

size: $(VENV)/.ready ## compare files, lines, contracts and docs with the limits of size.toml
	$(BIN)/python -m tests.house.size

planted: $(VENV)/.ready ## plant bugs into copies of src and see that each turns a fast test red (minutes)
	$(BIN)/python -m tests.planted run

browser:         ## install what the browser tests drive Chromium with (needs node and npm)
	cd tests/serve && npm install --no-package-lock --no-audit --no-fund

check: lint size ## format, lint, types, the growth gate, then the fast tests
	@$(MAKE) --no-print-directory test

lint: $(VENV)/.ready ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.ready ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-setup: .bench/.ready ## install the peers that the benchmarks compare with, in environments of their own

.bench/.ready: $(wildcard benchmarks/peers/requirements-*.txt)
	@for peer in pfl flwr pld; do \
	  test -x .bench/$$peer/bin/python || "$(PYTHON)" -m venv .bench/$$peer; \
	  grep -q torch benchmarks/peers/requirements-$$peer.txt && \
	    .bench/$$peer/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0; \
	  .bench/$$peer/bin/python -m pip install --quiet --disable-pip-version-check \
	    -r benchmarks/peers/requirements-$$peer.txt || exit 1; \
	done
	@touch $@

bench: $(VENV)/.ready  ## run the benchmarks (quiet machine, please); fails when a goal is missed
	$(BIN)/python -m benchmarks

combinations: $(VENV)/.ready ## ask every combination again and write docs/combinations.md
	$(BIN)/python -m tests.laws.table

notebooks: $(VENV)/.ready  ## write docs/notebooks/ from docs/tutorials/
	$(BIN)/python docs/site/notebooks.py

$(NOTEBOOKS)/.ready: constraints.txt constraints-torch.txt docs/site/requirements-notebooks.txt pyproject.toml
	@$(call make_venv,$(NOTEBOOKS))
	@echo "Installing Sightline and a kernel into $(NOTEBOOKS) (once; a minute or two) ..."
	@$(call install_pinned,$(NOTEBOOKS),constraints.txt docs/site/requirements-notebooks.txt)
	@$(call install_clone,$(NOTEBOOKS))
	@touch $@

notebooks-test: $(NOTEBOOKS)/.ready ## execute every notebook in a real kernel
	PATH="$(CURDIR)/$(NOTEBOOKS)/bin:$$PATH" $(NOTEBOOKS)/bin/python tests/docs/execute_notebooks.py

docs: $(DOCS)/.ready  ## build the docs site into site/
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	@echo "site/index.html"

reproduce: $(VENV)/.ready ## run every experiment of the papers again and write papers/docs; QUICK=1: a part, compared
	$(BIN)/python -m papers $(if $(QUICK),--quick)

docs-serve: $(DOCS)/.ready ## the docs site, rebuilt while you write
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve

$(DOCS)/.ready: docs/requirements.txt
	@$(call make_venv,$(DOCS))
	@$(DOCS)/bin/python -m pip install $(HASHED) -r docs/requirements.txt
	@touch $@

# a clone on the path would pass for the installed package, with pip too
wheel-test: export PYTHONPATH :=
wheel-test: $(VENV)/.ready ## build the wheel, install it into an empty environment, run the quickstart there
	rm -rf build dist $(WHEEL)
	$(BIN)/python -m pip wheel $(PIP_OPTIONS) --no-deps --no-build-isolation --wheel-dir dist .
	$(call make_venv,$(WHEEL))
	grep -oE '^[^# ]+==[^ ]+' constraints.txt > $(WHEEL)/versions.txt
	$(WHEEL)/bin/python -m pip install $(PIP_OPTIONS) -c $(WHEEL)/versions.txt "torch==2.13.0"
	$(WHEEL)/bin/python -m pip install $(PIP_OPTIONS) -c $(WHEEL)/versions.txt dist/sightline-*.whl
	cd $(WHEEL) && bin/python ../tests/docs/wheel.py ../examples/quickstart.toml
	cd $(WHEEL) && ../$(BIN)/mypy --strict --config-file= --python-executable bin/python ../tests/docs/typed.py

PINNED := constraints.txt constraints-torch.txt constraints-flower.txt constraints-hf.txt docs/requirements.txt \
  docs/site/requirements-notebooks.txt tests/fuzz/requirements.txt

constraints: $(VENV)/.ready ## write the hashes of the versions that the constraints files name
	$(BIN)/python .ci/constraints.py $(PINNED)

clean:           ## remove the virtual environments, what was built, and caches
	rm -rf .venv .venv-* site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
