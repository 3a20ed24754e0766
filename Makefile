# Everything from a fresh machine: `make train` trains a model, `make test` tests all that this machine allows.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python

# The CUDA lock only where a driver is: it is 3 GB. LOCK=cpu or LOCK=cuda decides by hand.
LOCK ?= $(if $(wildcard /proc/driver/nvidia/version)$(shell command -v nvidia-smi),cuda,cpu)
# Where pip finds torch's CPU wheels: the package index has CUDA builds only.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
export TORCH_CPU_INDEX

PIP := $(PY) -m pip --disable-pip-version-check install --quiet --require-hashes --only-binary :all:
STAMP := $(VENV)/ready-$(LOCK)
VALIDATORS := .validators
# Arguments of the recipe: make train ARGS="--steps 600"
ARGS ?=

.PHONY: help setup train test lint lock plan bench-cluster templates clean

.DEFAULT_GOAL := help
include image/image.mk requirements/audit.mk

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv from the locks

train: $(STAMP) ## train a small model on this machine (ARGS="--steps 600")
	$(PY) -m entrypoint train ddp $(ARGS)

test: $(STAMP) ## run every test that this machine allows
	$(PY) -m pytest

lint: $(STAMP) ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

plan: $(STAMP) ## show what `make train` would do, and why
	$(PY) -m entrypoint plan ddp $(ARGS)

templates: $(STAMP) $(VALIDATORS)/ready ## render templates/ again, and ask each platform's own validator
	$(PY) -m entrypoint render all -o templates
	$(PY) -m pytest tests/templates

bench-cluster: $(STAMP) ## what several nodes cost and gain, and recovery (root; some minutes)
	for bench in cluster recovery roll_call; do $(PY) bench/$$bench.py || exit; done

lock: $(STAMP) ## resolve pyproject.toml into the locks again
	$(PY) requirements/lock.py

clean: ## remove the environment and caches; runs in workspace/ stay
	rm -rf $(VENV) $(VALIDATORS) .audit dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './workspace/*' -prune -exec rm -rf {} +

# torch first and alone: only it needs the CPU index. DeepSpeed is a source archive (its ops are left out here), built
# with the locked setuptools; nothing else may be built, so no compiler is needed.
LOCKS := requirements/$(LOCK).txt requirements/image.txt requirements/dev.txt
$(STAMP): $(LOCKS)
	@echo "setting up $(VENV) from requirements/$(LOCK).txt (some minutes the first time)"
	$(PYTHON) -m venv --clear $(VENV)
	awk '/^[a-z]/ {first = /^(torch|setuptools)==/} first' requirements/$(LOCK).txt > $(VENV)/first.txt
	$(PIP) --no-deps $(if $(filter cpu,$(LOCK)),--retries 1 --extra-index-url $(TORCH_CPU_INDEX)) -r $(VENV)/first.txt \
	  || { echo "fix: torch's CPU wheel was not found; TORCH_CPU_INDEX=URL names an index or mirror that has it"; exit 1; }
	$(PIP) --no-binary deepspeed --use-pep517 --no-build-isolation $(addprefix -r ,$(LOCKS))
	touch $@

# SkyPilot, dstack and others want other releases than the product: 700 MB of their own.
$(VALIDATORS)/ready: requirements/validators.txt
	@echo "setting up $(VALIDATORS) from $< (a minute or two)"
	$(PYTHON) -m venv --clear $(VALIDATORS)
	awk '/^[a-z]/ {first = /^setuptools==/} first' $< > $(VALIDATORS)/first.txt
	$(subst $(VENV),$(VALIDATORS),$(PIP)) -r $(VALIDATORS)/first.txt
	$(subst $(VENV),$(VALIDATORS),$(PIP)) --no-binary cursor --use-pep517 --no-build-isolation -r $<
	touch $@
