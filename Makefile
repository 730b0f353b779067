# Each target first makes .venv, or brings it up to date (install.sh).
# `make PYTHON=/path/to/python3.11` chooses the Python that .venv is made with.

PY := .venv/bin/python

# Tests that need only Keras: they run a second time on JAX.
KERAS_TESTS := $(wildcard tests/layers tests/models tests/optimizers \
	tests/test_classify.py tests/test_decoding.py tests/test_losses.py \
	tests/test_metrics.py)

.PHONY: quickstart test test-tensorflow test-jax lint wheel-check install

quickstart: install
	$(PY) -m remixer_tf.quickstart

# Both at once, on a core each; each shows what it printed when it is done.
test: install
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target \
		test-tensorflow test-jax

test-tensorflow:
	$(PY) -m pytest

test-jax:
	KERAS_BACKEND=jax $(PY) -m pytest $(KERAS_TESTS)

lint: install
	$(PY) -m ruff check .

wheel-check: install
	PYTHON=$(PY) bash .ci/wheel_trains.sh

install: export PYTHON := $(PYTHON)
install:
	@bash install.sh
