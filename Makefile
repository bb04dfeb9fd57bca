# Everything from a bare clone with Python >= 3.11, pip and make: the environment lives in .venv, made once.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help reproduce publish test pytest exhaustive optimised mutants oldest lint format notebooks docs bench bench-stale accelerator clean

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
# Without compiling all that is installed, half of the time: Python compiles what is imported, once, since make lets it
# write that down whatever the shell says.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE :=

# The interpreter: PYTHON=... if given, else the first of these that runs and is new enough.
CANDIDATES := python3.13 python3.12 python3.11 python3 python
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# More arguments for the commands below, as in: make reproduce ARGS=--quick
ARGS ?=
# Processes of tests and figures, one a core of a small machine; each compiles for itself.
WORKERS ?= 2

help:
	@echo "make reproduce   the figures of the papers, each with its number, into gallery/ (ARGS=--quick: smaller samples)"
	@echo "make publish     a finished gallery into docs/gallery, and its numbers into the pages (ARGS: other than gallery/)"
	@echo "make test        ruff, basedpyright, the contracts of imports and pytest, as CI runs them; of the tests,"
	@echo "                 LANE=library runs what users rely on, LANE=figures each figure at a tiny size, LANE=pages the pages"
	@echo "make exhaustive  the tests that make test leaves out: dearer cases, all combinations, kills and processes"
	@echo "make optimised   the tests of make test with programs compiled as for users: no special flags of XLA"
	@echo "make mutants     plant faults of one line, and see that the tests catch each"
	@echo "make lint        ruff, basedpyright and the contracts of imports alone"
	@echo "make format      let ruff rewrite what it can"
	@echo "make oldest      the tests with the oldest releases of what is installed that pyproject.toml admits"
	@echo "make notebooks   execute notebooks/*.py into their .ipynb (ARGS=00: those whose names begin so)"
	@echo "make docs        the site, into site/: open site/index.html, no server is needed"
	@echo "make bench       run every benchmark and rewrite benchmarks/results"
	@echo "make bench-stale list the results whose measured code has changed"
	@echo "make accelerator test and measure what runs on an accelerator, in six minutes; BIN=/folder/of/python takes an"
	@echo "                 environment that is there, with its jax (ARGS=--resume: continue measurements that were cut off)"
	@echo "make clean       remove .venv, caches, the gallery and the site"

# A second trained network, whose tokens are phonemes, is drawn as well where it lies beside the repository, of smaller
# samples since it is ten times larger, unless ARGS ask for something else than --quick.
PLBERT := ../shared/data/albert-plbert
SECOND = $(if $(filter-out --quick,$(ARGS)),,$(wildcard $(PLBERT)/model.safetensors))

reproduce: $(STAMPS)/plot
	$(if $(SECOND),$(BIN)/clusterjax reproduce figure1 figure2 figure7 --albert $(PLBERT) --out gallery/plbert --quick)
	$(BIN)/clusterjax reproduce --out gallery --jobs $(WORKERS) $(ARGS)

publish: $(STAMPS)/plot
	$(BIN)/python docs/_tools/publish_gallery.py $(or $(ARGS),gallery)

# The three lanes of the tests; `make test LANE=figures` runs one, `make test` all.
figures := tests/experiments
pages := $(addprefix tests/,docs house playground site)
library := tests $(addprefix --ignore=,$(figures) $(pages))
LANE ?=

# Lint is the work of one core and runs beside the tests; a mistake in either ends `make test` with an error.
test: $(STAMPS)/dev
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: $(STAMPS)/dev
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $($(LANE)) $(ARGS)

exhaustive: $(STAMPS)/dev
	OPTIMISED=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m exhaustive --deselect tests/golden/test_golden.py $(ARGS)
	@# The canonical runs are compared in the build that wrote their file: others round otherwise.
	$(if $(ARGS),,$(BIN)/python -m pytest --numprocesses $(WORKERS) -m exhaustive tests/golden/test_golden.py)

optimised: $(STAMPS)/dev
	OPTIMISED=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

mutants: $(STAMPS)/dev
	$(BIN)/python -m tests.mutants $(ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo --no-cache

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

notebooks: $(STAMPS)/dev
	set -e; export PYTHONWARNINGS="ignore:IProgress not found"; for script in notebooks/$(ARGS)*.py; do $(BIN)/jupytext --to ipynb --execute "$$script" --output "$${script%.py}.ipynb"; done

# The variable is Material's own switch for its notice about a MkDocs that this site does not use.
docs: $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# On Python 3.11, the oldest, unless PYTHON names another.
oldest:
	tests/oldest.sh all $(ARGS)

bench-stale: $(STAMPS)/dev
	$(BIN)/python benchmarks/table.py --stale

bench: $(STAMPS)/dev
	set -e; for script in benchmarks/[!_]*.py; do $(BIN)/python "$$script" $(ARGS); done

# Tests and benchmarks on the card that jax sees, 100 and about 240 seconds long; benchmarks also follow tests that fail.
# Where BIN is given, nothing is installed: its Python needs jax for the card, what the package needs, and pytest.
CARD := tests/summation/test_fused_on_a_card.py tests/summation/test_sums.py
accelerator: export PYTHONPATH := $(CURDIR)$(addprefix :,$(PYTHONPATH))
accelerator: $(if $(filter file,$(origin BIN)),$(STAMPS)/dev)
	@backend=$$($(BIN)/python -c 'import jax; print(jax.default_backend())') || exit 1; \
	if [ "$$backend" = cpu ]; then echo "There is no accelerator here: nothing was tested or measured."; exit 0; fi; \
	status=0; \
	OPTIMISED=1 timeout 100 $(BIN)/python -m pytest -q -p no:cacheprovider -o addopts= -o filterwarnings=default \
		-m "not exhaustive" $(CARD) || { status=$$?; echo "The tests failed, or did not end in 100 s: $$status"; }; \
	$(BIN)/python benchmarks/accelerator.py --budget 240 $(ARGS) || exit; exit $$status

clean:
	rm -rf $(VENV) gallery site dist .pytest_cache .ruff_cache .jax_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Python without ensurepip (Debian splits it off) borrows the pip that it has.
$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 was found; install one, or name it: make $(or $(firstword $(MAKECMDGOALS)),test) PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "PYTHON=$(PYTHON) is older than 3.11 or does not run; name another."; exit 1; }
	$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/plot: pyproject.toml | $(STAMPS)/venv
	$(INSTALL) --editable '.[plot,probe,sweep]'
	@touch $@

$(STAMPS)/docs: pyproject.toml | $(STAMPS)/venv
	$(INSTALL) --editable '.[docs]'
	@touch $@

$(STAMPS)/dev: pyproject.toml | $(STAMPS)/venv
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(STAMPS)/plot $(STAMPS)/docs
