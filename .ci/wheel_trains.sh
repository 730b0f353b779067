#!/usr/bin/env bash
# Builds the wheel, installs it in an empty environment, and trains there a few steps,
# away from the repository, by the gin files that the wheel carries.
# PYTHON names the Python that makes the environment; `make wheel-check` sets it.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
python=${PYTHON:-python3}
unset PYTHONPATH
export TF_CPP_MIN_LOG_LEVEL=3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "Building the wheel"
# Of a copy: setuptools leaves files where it builds, and packs what it left before.
mkdir "$work/source"
cp -r remixer_tf tasks gin setup.py pyproject.toml README.md LICENSE "$work/source"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work" "$work/source"
wheel=$(ls "$work"/remixer_tf-*.whl)
echo "$(basename "$wheel"): $(wc -c <"$wheel") bytes"

echo "Installing it in an empty environment"
"$python" -m venv "$work/venv"
python=$work/venv/bin/python
"$python" -m pip install --quiet --no-compile --constraint constraints.txt "$wheel"
"$python" -m pip install --quiet --no-compile --constraint constraints.txt --no-deps t5
du -sh "$work/venv" | cut -f1

cd "$work"
"$python" - "$work/venv" "$repository" <<'END'
import pathlib
import sys

import remixer_tf.configuration
import remixer_tf.tasks

environment, repository = (pathlib.Path(path).resolve() for path in sys.argv[1:])
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and name.split(".")[0] == "remixer_tf":
        assert environment in pathlib.Path(file).resolve().parents, (name, file)
for path in filter(None, sys.path):
    path = pathlib.Path(path).resolve()
    assert path != repository and repository not in path.parents, path
print("remixer_tf comes from the wheel:", pathlib.Path(remixer_tf.__file__).parent)
END

"$python" -m remixer_tf.train_vocabulary --task=mini_cogs --model_type=word \
  --output="$work/words.model"
echo "Training remixer_tiny for 20 steps"
"$python" -m remixer_tf.train --model_dir="$work/run" \
  --gin_file=models/remixer_tiny.gin --gin_file=runs/mini_cogs.gin \
  --gin.VOCABULARY_FILE="'$work/words.model'" \
  --gin.TRAIN_STEPS=20 --gin.BATCH_SIZE=8 --gin.WARMUP_STEPS=10 \
  --gin.train.log_period=10 --gin.train.checkpoint_period=10
ls "$work"/run/checkpoints/*20* >/dev/null
echo "The wheel trains away from the repository."
