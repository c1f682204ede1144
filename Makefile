# Every target creates .venv if it is missing. The machine needs Python >= 3.11, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo dist docs flower-demo pages test test-slow lint bench reproduce clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "adelfl needs Python 3.11 or newer; select it with: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "python -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "creating $(VENV) (once; the CPU build of torch has about 200 MB) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## compare seven straggler methods on bundled data under a short time budget
	@$(BIN)/adelfl compare --fresh --jobs 2 --out runs/demo --plot demo.png

flower-demo: $(READY) ## run FedAvg, drop and adel on a real Flower deployment with TLS and one slow node (9 minutes)
	@$(BIN)/python examples/flower/demo.py

lint: $(READY) ## check style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## run everything that CI runs: linters, type checks, fast tests
	$(BIN)/python -m pytest -m 'not slow' -n auto --dist worksteal

test-slow: $(READY) ## run the slow tests (minutes)
	$(BIN)/python -m pytest -m slow

docs: $(READY) ## build the documentation; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

dist: $(READY) ## build the wheel and the source distribution into dist/
	$(BIN)/python -m build --outdir dist

bench: $(READY) ## run all benchmarks
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/planner.py
	$(BIN)/python bench/replan.py
	$(BIN)/python bench/truncated.py
	$(BIN)/python bench/parts.py
	$(BIN)/python bench/models.py
	$(BIN)/python bench/simulators.py
	$(BIN)/python bench/peer_methods.py
	$(BIN)/python bench/dashboard.py

# Folder with MNIST and CIFAR-10; without it, they are downloaded from the Hugging Face hub.
ADELFL_DATA ?= $(wildcard ../shared/data)

reproduce: $(READY) ## reproduce the paper's experiments at cpu scale (hours; continues where it stopped)
	$(if $(ADELFL_DATA),ADELFL_DATA='$(ADELFL_DATA)') $(BIN)/adelfl reproduce all --out docs/results
	@$(MAKE) pages

pages: $(READY) ## fill the tables of the documentation from docs/results
	$(BIN)/python -m studies.page README.md docs/reproduction.md docs/beyond.md docs/leaderboard.md

clean: ## remove .venv, caches and built files
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo.png dist site .bench-envs
