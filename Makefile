# Each target first makes .venv, or brings it up to date (install.sh).
# `make PYTHON=/path/to/python3.11` chooses the Python that .venv is made with.

PY := .venv/bin/python

# The tests run in three processes, two at a time: two halves that take about as long,
# the second one together with what needs only Keras once more, on JAX.
RUNS := tests/analysis/ tests/configuration/ tests/evaluation/ tests/serving/ \
	$(wildcard tests/test_*.py)
PARTS := $(filter-out $(RUNS) tests/testdata/ tests/__pycache__/, $(wildcard tests/*/))
KERAS_TESTS := tests/layers tests/models tests/optimizers tests/decoding \
	tests/objectives

.PHONY: quickstart test test-runs test-parts test-jax lint docs wheel-check install

quickstart: install
	$(PY) -m remixer_tf.quickstart

# Each shows what it printed when it is done.
test: install
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target \
		test-runs test-parts test-jax

test-runs:
	$(PY) -m pytest $(RUNS)

test-parts:
	$(PY) -m pytest $(PARTS)

test-jax:
	KERAS_BACKEND=jax $(PY) -m pytest $(KERAS_TESTS)

lint: install
	$(PY) -m ruff check .

# Into site/; a broken link or name is an error. The variable hides an advertisement.
docs: install
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

wheel-check: install
	PYTHON=$(PY) bash .ci/wheel_trains.sh

install: export PYTHON := $(PYTHON)
install:
	@bash install.sh
