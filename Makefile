# make demo    a batch of prompts through the default model, with a memory report
# make test    every check: ruff, mypy, pytest
# make setup   what both do first: .venv, the package with its compiled kernels, the default model
# make soak    the slow tests
# make clean   remove what the above made here (the model stays in the user's cache folder)
#
# Everything is incremental: a target does again only what a changed file asks for.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NATIVE := $(wildcard csrc/*) $(wildcard build_backend/*.py)

.PHONY: demo test setup build check soak format clean
.DELETE_ON_ERROR:

demo: setup
	$(BIN)/octavo generate smollm2-135m --chat --temperature 0 --max-tokens 64 \
	  -p "What is the capital of France?" \
	  -p "Explain in one sentence why the sky is blue." \
	  -p "Write a haiku about memory." \
	  -p "List three uses of a sheet of paper." \
	  -p "What is 7 times 6?" \
	  -p "Name a famous library and say where it is." \
	  -p "Give me a title for a book about bridges." \
	  -p "What does an operating system do?"

test: setup check
	$(BIN)/python -m pytest

soak: setup
	$(BIN)/python -m pytest -m soak

check: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: build
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(VENV)/.model

build: $(VENV)/.installed

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Octavo needs Python 3.10 or newer; set PYTHON=python3.x")'
	@$(PYTHON) -c 'import ensurepip' || { echo "This Python can't make a venv. Debian: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Build isolation is off so that a change in csrc/ recompiles only what it touches, with the pinned tools; nothing here asks for another torch.
$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt $(NATIVE)
	@echo "Installing Octavo and what it needs into $(VENV): a few minutes the first time, most of them for torch."
	@$(PIP) install -c constraints.txt scikit-build-core nanobind cmake ninja
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@if $(BIN)/python -m octavo.kernels.availability; then touch $@; else echo "Going on without compiled kernels; the next make tries again."; fi

# The fetch looks into the user's cache folder first, so that a model is downloaded once per user.
$(VENV)/.model: $(VENV)/.installed
	$(BIN)/python -m octavo.models.fetch
	@touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache .mypy_cache .hypothesis octavo/kernels/build_error.txt
	find octavo tests bench build_backend -name __pycache__ -type d -prune -exec rm -rf {} +
