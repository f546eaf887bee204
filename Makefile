# People and CI call the same targets; every target sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
# Where Python is told to write no bytecode, each process would compile what it imports once more.
COMPILE_OPTION = $(if $(PYTHONDONTWRITEBYTECODE),--compile-bytecode)
UPGRADE_OPTION = $(if $(UPGRADE),--upgrade-package $(UPGRADE),--upgrade)

export DO_NOT_TRACK = 1
export PREFECT_SERVER_ANALYTICS_ENABLED = false
export GX_ANALYTICS_ENABLED = false
export DVC_NO_ANALYTICS = 1
export RAY_USAGE_STATS_ENABLED = 0
export MLFLOW_DISABLE_TELEMETRY = true
export HF_HUB_DISABLE_TELEMETRY = 1
.PHONY: help setup train test test-all test-cluster fuzz lint format docs bench soak up down year lock upgrade
.DEFAULT_GOAL := help

help:  ## Show the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/installed  ## Install the locked environment into .venv (once).

.venv/installed: requirements-dev.lock pyproject.toml
	@echo "Making an environment in .venv, with uv to fill it …"
	@$(PYTHON) -m venv .venv
	@sed -n '/^uv==/,/# via/p' requirements-dev.lock > .venv/uv.lock
	@$(BIN)/pip install --quiet --no-deps --require-hashes --requirement .venv/uv.lock
	@echo "Installing the locked packages, 1.6 GB …"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes $(COMPILE_OPTION) \
	  --requirement requirements-dev.lock
	@echo "Installing PyTorch, whose build differs between systems, and this project …"
	@$(BIN)/pip install --quiet --editable .
	@touch $@

upgrade: export PREFECT_HOME := $(CURDIR)/.retrain/prefect
upgrade:  ## Merge a newer version of this project (REF=upstream/main), and show what would run again.
	git fetch upstream
	git merge --no-edit $(REF)
	@$(MAKE) --no-print-directory setup
	@$(BIN)/retrain down
	@if [ -f mlflow.db ]; then cp mlflow.db "mlflow.db.$$(date +%Y%m%d-%H%M%S)" && \
	  $(BIN)/mlflow db upgrade sqlite:///mlflow.db; fi
	@if [ -f "$(PREFECT_HOME)/prefect.db" ]; then $(BIN)/prefect server database upgrade -y; fi
	@$(BIN)/retrain train --dry-run

lock:  ## Lock the newest versions that pyproject.toml allows (UPGRADE=NAME for one package).
	$(BIN)/uv pip compile --quiet $(UPGRADE_OPTION) pyproject.toml --extra s3 --extra servers \
	  -o requirements.lock
	$(BIN)/uv pip compile --quiet $(UPGRADE_OPTION) pyproject.toml --all-extras \
	  --constraint requirements.lock -o requirements-dev.lock

train: setup  ## Pull, check, prepare, train, evaluate, gate and promote the starter workload.
	@$(BIN)/retrain train vit

# A file's tests share what takes long to make. Those of whole flows take longest, and come first.
# A process of the tests that crashes is not replaced: pytest-xdist would wait for it for ever.
PYTEST := $(BIN)/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder

test: setup  ## Run the tests, but for the slow ones.
	$(PYTEST) -m "not slow and not cluster"

test-all: test  ## Run the slow tests, too.
	$(PYTEST) -m slow

test-cluster: setup  ## Train on two machines made of namespaces that see one folder, and lose one (as root).
	$(BIN)/python -m pytest -m cluster tests/cluster $(ARGS)

fuzz: setup  ## Try broken images, data sets and configurations (CASES=2000).
	$(BIN)/python -m pytest -m slow tests/flows/test_fuzz.py

lint: setup  ## Check style (ruff) and types (mypy, strict).
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Rewrite the code in the house style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## Write the reference pages, and build the documentation into site/, to be read offline.
	$(BIN)/python scripts/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: setup  ## Run the benchmarks side by side with what a user would write instead (DATA=cifar10).
	$(BIN)/python -m benchmarks $(if $(DATA),--data $(DATA))

soak: setup  ## End runs at random moments, and check that the next run mends all (TRIALS=80 AIMED=20 SERVED=60).
	$(BIN)/python -m pytest -m slow tests/flows/test_soak.py

year: setup  ## Play a year of a project week by week, with what goes wrong in one (WEEKS=52).
	$(BIN)/python -m pytest -m slow tests/flows/test_year.py

up: setup  ## Start the Prefect server, a worker with the deployments, the MLflow UI and the champions.
	@$(BIN)/retrain up

down: setup  ## Stop what `make up` started.
	@$(BIN)/retrain down
