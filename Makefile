# Each target first makes .venv, or brings it up to date (install.sh).
# `make PYTHON=/path/to/python3.11` chooses the Python that .venv is made with.

PY := .venv/bin/python

# Empty: Python keeps what it compiled, where an environment says that it must not. Each
# process spends 13 CPU seconds more otherwise until TensorFlow and Keras are imported.
export PYTHONDONTWRITEBYTECODE :=

# The tests run in so many processes. One that is done takes over from the others.
WORKERS := 2
PYTEST := $(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal
# What needs only Keras, and runs on JAX too. Of layers the slow tests there, and of models
# all, say little more than `tests/test_backends_tf.py`, which has both give the same
# outputs and gradients; run them by hand: KERAS_BACKEND=jax pytest tests/layers tests/models
LAYER_TESTS := tests/kernels tests/layers tests/test_testing.py
KERAS_TESTS := tests/optimizers tests/decoding tests/objectives
# What a run does, on either engine; on JAX slow unless marked `quick_on_jax`.
ENGINE_TESTS := tests/training/test_loop.py tests/training/test_adapters.py \
	tests/engines/test_train_step.py tests/engines/test_layout.py \
	tests/engines/test_scan.py tests/engines/test_loss_scale.py \
	tests/front_door/test_threads.py

.PHONY: quickstart test test-tensorflow test-jax test-all test-slow test-slower \
	test-slow-tensorflow test-slow-jax lint docs sbom wheel-check install

quickstart: install
	$(PY) -m remixer_tf quickstart

test: install
	@$(MAKE) --no-print-directory --keep-going test-tensorflow test-jax

test-tensorflow:
	$(PYTEST) -m "not slow"

test-jax:
	KERAS_BACKEND=jax $(PYTEST) -m "not slow" \
		$(LAYER_TESTS) $(KERAS_TESTS) $(ENGINE_TESTS)

test-all: install
	@$(MAKE) --no-print-directory --keep-going test test-slow test-slower

# The names of what runs are shown.
test-slow: install
	@$(MAKE) --no-print-directory --keep-going test-slow-tensorflow test-slow-jax

test-slow-tensorflow:
	$(PYTEST) -m "slow and not slower" --verbose

test-slow-jax:
	KERAS_BACKEND=jax $(PYTEST) -m "slow and not slower" --verbose $(ENGINE_TESTS)

# CI leaves these out.
test-slower: install
	$(PYTEST) -m slower --verbose
	KERAS_BACKEND=jax $(PYTEST) -m slow --verbose tests/kernels $(KERAS_TESTS) \
		tests/engines/test_remat.py tests/engines/test_loss_in_parts.py
	KERAS_BACKEND=jax $(PYTEST) -m slower --verbose $(ENGINE_TESTS)

lint: install
	$(PY) -m ruff check .
	$(PY) -m mypy

# Into site/; a broken link or name is an error. The variable hides an advertisement.
docs: install
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

# What .venv holds, as a CycloneDX bill of materials, in sbom.json. The tool stays apart.
sbom: install
	$(PY) -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet cyclonedx-bom
	build/sbom/bin/cyclonedx-py environment .venv --output-reproducible --output-file sbom.json

wheel-check: install
	PYTHON=$(PY) bash .ci/wheel_trains.sh

install: export PYTHON := $(PYTHON)
install:
	@bash install.sh
