# Every target prepares .venv itself, once. A new machine needs only Python >= 3.11, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo docs flower-demo test test-slow lint bench reproduce clean help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "adelfl needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "python -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "preparing $(VENV) (once; torch's CPU build is some 200 MB) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## compare seven straggler methods on embedded data, under a budget that starves the first layers
	@$(BIN)/adelfl compare --fresh --jobs 2 --out runs/demo --plot demo.png --open

flower-demo: $(READY) ## FedAvg, drop and ADEL-FL on a real Flower deployment with TLS, one node slowed down; 9 minutes
	@$(BIN)/python examples/flower/demo.py

lint: $(READY) ## style, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## lint, types and the fast tests: what CI runs
	$(BIN)/python -m pytest -m 'not slow' -n auto --dist worksteal

test-slow: $(READY) ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

docs: $(READY) ## the site below site/: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(READY) ## side-by-side measurements
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/planner.py
	$(BIN)/python bench/replan.py
	$(BIN)/python bench/truncated.py
	$(BIN)/python bench/parts.py
	$(BIN)/python bench/models.py
	$(BIN)/python bench/simulators.py
	$(BIN)/python bench/dashboard.py

# Where MNIST and CIFAR-10 are, if they are at hand; otherwise they come from the Hugging Face hub.
ADELFL_DATA ?= $(wildcard ../shared/data)

reproduce: $(READY) ## the paper's experiments at cpu scale; takes hours, and goes on where it was stopped
	$(if $(ADELFL_DATA),ADELFL_DATA='$(ADELFL_DATA)') $(BIN)/adelfl reproduce all --out docs/results --page docs/reproduction.md

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo.png site .bench-envs
