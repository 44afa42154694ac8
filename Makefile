# The two commands a newcomer needs: `make run` and `make test`. Both prepare .venv first.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: run test unit lint types tests test-exhaustive docs bench records fuzz format clean

run: .venv/ready
	$(BIN)/evenstep demo

test: .venv/ready lint types tests

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/ready
	$(BIN)/mypy

tests: .venv/ready
	$(BIN)/pytest -n 2 -m "not exhaustive"

# From a graph to its plan: no searches, studies or commands. Under a minute on two cores.
unit: .venv/ready
	$(BIN)/pytest -n 2 -m "not exhaustive and not slow" tests/graph tests/signal tests/init tests/rules tests/planning

test-exhaustive: .venv/ready
	$(BIN)/pytest -n 2 -m exhaustive

# The site, as the tests build it too; open build/site/index.html.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: .venv/ready
	$(BIN)/python benchmarks/bench_plan.py
	$(BIN)/python benchmarks/bench_startup.py

# Every record in results/: commit, device, date, command, and whether its code has changed since. Needs git alone.
records:
	@$(PYTHON) benchmarks/records.py

# Random arguments and damaged files for all that is public, five minutes long; not part of the tests.
fuzz: .venv/ready
	$(BIN)/python benchmarks/fuzz.py

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv

.venv/ready: pyproject.toml research/pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]" -e "./research[dev]"
	touch $@
