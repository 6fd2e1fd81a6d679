# learn: set up the environment and run the main job.  test, check, bench: what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: learn test check bench clean

learn: $(STAMP)
	$(BIN)/doppler learn

test: $(STAMP)
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	@status=0; for script in benchmarks/*.py; do \
		echo "== $$script"; $(BIN)/python $$script || status=1; \
	done; exit $$status

# The lock file pins every package, so pip has nothing to resolve.
$(STAMP): requirements.lock pyproject.toml
	@start=$$(date +%s); \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || exit 1; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . && \
	touch $(STAMP) && \
	echo "environment ready in $$(( $$(date +%s) - start )) s"

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
