# All targets work in a fresh clone: those that need the virtual environment make it.
# `make help` lists the targets.

MAKEFLAGS += --no-print-directory
PYTHON ?=
ARGS ?=
# The tests that `make test-core` runs.
TESTS ?= tests/core_test.py $(foreach layer,base strategies sampling accounting,\
  $(wildcard tests/$(layer) tff_dp_aggregators/$(layer)))
bin := .venv/bin
# Files are run in the order that conftest.py sorts them in. By default, xdist runs files
# with few tests last, and one process would wait for the other. Bytecode is written even
# if the user's shell disables it: tests start many programs, and each of them would
# compile the package again.
in_two := -m pytest -n 2 --dist loadfile --no-loadscope-reorder
pytest := PYTHONDONTWRITEBYTECODE= $(bin)/python $(in_two)
compile := $(bin)/uv pip compile --quiet --no-python-downloads --system-certs \
  --python-version 3.9 --universal --generate-hashes --no-header --no-annotate
# Systems that cannot be installed beside TensorFlow Federated have their own environments.
peers := $(basename $(notdir $(wildcard requirements/peers/*.in)))

.DEFAULT_GOAL := help
.PHONY: help venv simulate test test-core mutants slow-test moving coverage lint package docs lock \
  lock-peers bazel-test clean

help: ## List the targets
	@echo 'Usage: make TARGET [ARGS="..."] [PYTHON=python3.X]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: ## Install requirements.lock into .venv (PYTHON= chooses 3.9, 3.10 or 3.11)
	@PYTHON='$(PYTHON)' tools/python/make_venv.sh

simulate: venv ## Simulate a training with differential privacy (ARGS="--help" lists the flags)
	@$(bin)/python -m experiments.simulate $(ARGS)

test: venv ## Run the tests except slow ones (ARGS go to pytest)
	@$(pytest) $(ARGS)

test-core: ## Run the tests that need no TensorFlow, without it (PYTHON= may be 3.9 to 3.14)
	@PYTHON='$(PYTHON)' tools/python/make_venv.sh core
	@PYTHONDONTWRITEBYTECODE= build/core/bin/python $(in_two) $(TESTS) $(ARGS)

mutants: venv ## Insert 52 faults, one at a time; list the test that finds each (ARGS="--help")
	@$(bin)/python tools/python/mutants.py $(ARGS)

slow-test: venv ## Run the slow tests only (ARGS go to pytest)
	@$(pytest) -m slow $(ARGS)

moving: venv ## Run docs/moving and other comparisons with other systems (ARGS go to pytest)
	@for peer in $(peers); do tools/python/make_peer.sh $$peer || exit 1; done
	@$(pytest) -m 'slow or not slow' tests/moving_programs_test.py \
	  tests/accounting/accountants/jax_privacy_test.py \
	  tests/accounting/canaries_test.py $(ARGS)

coverage: venv ## Run the tests and measure their coverage (ARGS go to pytest)
	@$(pytest) --cov=tff_dp_aggregators $(ARGS)

lint: venv ## Check style and types
	$(bin)/ruff check .
	$(bin)/ruff format --check --quiet .
	$(bin)/mypy
	$(bin)/python tools/python/check_files.py

package: venv ## Build sdist and wheel into dist/, and test each in a new environment
	@tools/python/check_package.sh

docs: venv ## Build the documentation site into site/ (ARGS go to mkdocs)
	@NO_MKDOCS_2_WARNING=1 $(bin)/python -m mkdocs build --strict $(ARGS)

lock: venv ## Update both locks from setup.py (ARGS=--upgrade to new releases)
	$(compile) --all-extras \
	  --override requirements/overrides.txt \
	  --constraint requirements/constraints.txt \
	  $(ARGS) setup.py -o requirements.lock
	$(compile) $(ARGS) setup.py requirements/core.in -o requirements/core.lock

lock-peers: venv ## Update the locks in requirements/peers (ARGS=--upgrade as above)
	@for peer in $(peers); do \
	  $(bin)/uv pip compile --quiet --no-python-downloads --system-certs \
	    --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    $(ARGS) requirements/peers/$$peer.in -o requirements/peers/$$peer.txt || exit 1; \
	done

bazel-test: ## Run the tests with Bazel, offline, in .venv (ARGS go to Bazel)
	@command -v bazel >/dev/null || { \
	  echo 'error: bazel is missing. On Debian: apt-get install bazel-bootstrap' >&2; \
	  exit 1; }
	@test -f .venv/.installed || { \
	  echo 'error: .venv is missing. Run: make venv' >&2; exit 1; }
	bazel test $(ARGS) //...

clean: ## Remove .venv, caches and build output
	@if command -v bazel >/dev/null && [ -e bazel-out ]; then bazel shutdown; fi
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage* build dist site *.egg-info
	rm -f bazel-*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
