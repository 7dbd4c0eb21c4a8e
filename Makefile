# `make demo` and `make test` are all a newcomer needs; both install what they use into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check clean

demo: $(VENV)/.installed-demo
	$(BIN)/draftproof generate --compare --depth 6 --max-tokens 160 --prompt-file examples/prompt.txt

test: $(VENV)/.installed-test
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test

check: $(VENV)/.installed-demo
	$(BIN)/draftproof check

$(VENV)/.installed-demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[all]'
	touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/.installed-demo

clean:
	rm -rf $(VENV) build src/*.egg-info
