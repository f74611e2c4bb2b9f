# Commands for a checkout. `make run` and `make test` set themselves up, once per change of
# pyproject.toml or constraints.txt: a virtual environment, the tested set of packages, `simic init`.
# What only tests and checks need is installed with the first command that needs it.
# VENV and ARGS can be given: make run ARGS="--seed 1", make test ARGS="tests/unit -k seeds". Tests run in a process for
# each core and one more, because tests wait for servers, but in four at most; ARGS="-n 0 --pdb" keeps them in one.

SHELL := bash
.DEFAULT_GOAL := help
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
WORKERS := $(shell echo $$(($$(nproc 2>/dev/null || echo 1) + 1)))
SHA := $(shell command -v sha256sum || echo 'shasum -a 256')
READY := $(VENV)/.ready-$(shell { cat pyproject.toml constraints.txt; echo '$(CURDIR)'; } | $(SHA) | cut -c1-16)
STAMP := $(READY)-dev

export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export MLFLOW_DISABLE_TELEMETRY := true
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles a module when it is first imported, and keeps the result unless this is set.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup run test coverage lint format bench cartpole ablations demo architecture criteria metrics trust up down ui

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Set up the environment for all commands, if anything about it changed

$(READY): PACKAGE := .
$(STAMP): PACKAGE := .[dev]
$(READY) $(STAMP):
	@set -e; mkdir -p "$(VENV)"; exec 9>"$(VENV)/.lock"; \
	if command -v flock >/dev/null; then flock 9; fi; \
	if test -e "$@"; then exit 0; fi; \
	for python in python3.11 python3 none; do \
	  if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then break; fi; \
	done; \
	if test "$$python" = none; then echo "Simic needs Python 3.11 or 3.12, as python3.11 or python3" >&2; exit 1; fi; \
	echo "Setting up $(VENV) with $$python, once: downloading and installing 2.5 GB of packages, some minutes"; \
	rm -f "$(VENV)"/.ready-*; \
	"$$python" -m venv "$(VENV)"; \
	"$(BIN)/pip" install $$(test -t 1 || echo --quiet) --no-compile -c constraints.txt -e '$(PACKAGE)'; `# a run imports a quarter of them` \
	"$(BIN)/simic" init; \
	touch "$(READY)" "$@"

run: $(READY) ## Collect, train, validate and promote: ARGS="--seed 1 --profile quick"; a rejection is exit 3 of simic run, 2 of make
	@"$(BIN)/simic" run $(ARGS)

test: export OMP_NUM_THREADS := 1
test: $(STAMP) ## Run the whole test suite
	@"$(BIN)/pytest" -n $(WORKERS) $(ARGS)

coverage: export OMP_NUM_THREADS := 1
coverage: $(STAMP) ## Run the whole test suite and compare its coverage with the floors; takes about two fifths longer
	@"$(BIN)/pytest" -n $(WORKERS) --cov --cov-report= $(ARGS)

lint: $(STAMP) ## Check style, types, imports between packages, security and the installed packages
	@"$(BIN)/ruff" check .
	@"$(BIN)/ruff" format --check .
	@"$(BIN)/mypy" --strict simic flows tasks
	@"$(BIN)/lint-imports" --no-logo
	@"$(BIN)/bandit" --quiet --recursive --configfile pyproject.toml simic flows tasks
	@"$(BIN)/pip" check

format: $(STAMP) ## Format the code and apply automatic fixes
	@"$(BIN)/ruff" check --fix-only --quiet .
	@"$(BIN)/ruff" format .

bench: export OMP_NUM_THREADS := 1
bench: $(STAMP) ## Measure against named peers, in the same run; what this machine cannot measure (exit 4) is passed over
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; "$(BIN)/python" "$$file" $(ARGS) || test $$? = 4; done

cartpole: export OMP_NUM_THREADS := 1
cartpole: $(STAMP) ## Train CartPole-v1 with PPO and V-trace until it is solved, three seeds each; fails if one is not
	@"$(BIN)/python" benchmarks/cartpole.py --seeds 3 --check $(ARGS)

ablations: export OMP_NUM_THREADS := 1
ablations: $(STAMP) ## Train every recipe of examples/ablations with five seeds and write docs/ablations.md
	@"$(BIN)/python" examples/ablations/ablations.py $(ARGS)

demo: $(STAMP) ## A day in a temporary home: publish, two consumers, their reports, a nightly run, a rollback: ARGS="--kill"
	@"$(BIN)/python" examples/demo/day.py $(ARGS)

architecture: $(STAMP) ## Draw the packages and imports of docs/architecture.md again
	@"$(BIN)/python" docs/scripts/draw_architecture.py

criteria: $(READY) ## List the gate's criteria in docs/trust.md again
	@"$(BIN)/python" docs/scripts/list_criteria.py

metrics: $(READY) ## Write docs/metrics.md again from the declarations of metrics
	@"$(BIN)/python" docs/scripts/list_metrics.py

trust: $(STAMP) ## Measure errors and power of the gate for docs/trust.md again, on synthetic and on grown episodes
	@"$(BIN)/python" docs/scripts/draw_trust.py
	@"$(BIN)/python" docs/scripts/draw_planted.py
	@"$(BIN)/python" docs/scripts/measure_log_gate.py
	@"$(BIN)/python" docs/scripts/measure_sequential.py
	@"$(BIN)/python" docs/scripts/measure_recipes.py

up: $(READY) ## Start Prefect's server and worker and MLflow's UI on this machine
	@"$(BIN)/simic" up $(ARGS)

down: $(READY) ## Stop exactly those
	@"$(BIN)/simic" down $(ARGS)

ui: $(READY) ## Print the address of MLflow's UI; start it if necessary
	@"$(BIN)/simic" ui $(ARGS)
