#!/usr/bin/env bash
# Builds the wheel, installs it alone in an empty environment, without t5, and uses it away
# from the repository: it imports weights, tunes them on a table, answers, scores and exports.
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
du -sh "$work/venv" | cut -f1
if ! "$python" -c 'import importlib.util as i, sys; sys.exit(not i.find_spec("seqio"))'; then
  echo "Asking for a command that needs seqio, which pip leaves out on this Python"
  if "$work/venv/bin/remixer_tf" tasks >"$work/out.txt" 2>&1; then exit 1; fi
  grep "^error: .*pip install --no-deps seqio" "$work/out.txt"
  "$python" -m pip install --quiet --no-compile --no-deps --constraint constraints.txt seqio
fi

cd "$work"
remixer_tf() { "$work/venv/bin/remixer_tf" "$@"; }

echo "Importing weights, and tuning them on a table"
(cd "$repository" && "$python" - "$work/published") <<'END'
import pathlib
import sys

from tests.weights.numpy_t5 import made_up_weights
from tests.weights.published import write_hugging_face

write_hugging_face(pathlib.Path(sys.argv[1]), made_up_weights())
END
printf 'a dog slept\ta\na cat ran\tb\n' >pairs.tsv
(printf 'inputs\ttargets\n' && cat pairs.tsv) >table.tsv
# One process runs most commands: to import TensorFlow takes longer than they do.
"$python" - "$work/venv" "$repository" <<'END'
import pathlib
import sys

import gin

import remixer_tf.configuration
import remixer_tf.tasks
from remixer_tf.commands import run_command

environment, repository = (pathlib.Path(path).resolve() for path in sys.argv[1:])
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and name.split(".")[0] == "remixer_tf":
        assert environment in pathlib.Path(file).resolve().parents, (name, file)
for path in filter(None, sys.path):
    path = pathlib.Path(path).resolve()
    assert path != repository and repository not in path.parents, path
folder = pathlib.Path(remixer_tf.__file__).parent
for name in ("py.typed", "__init__.pyi"):  # what type checkers look for
    assert (folder / name).is_file(), name
print("remixer_tf comes from the wheel:", folder)

run = "--model_dir=imported"
for command, *options in (
    ("train_vocabulary", "--task=mini_cogs", "--vocab_size=150", "--output=pieces.model"),
    ("import_weights", "--from=published", "--vocabulary=pieces.model", run),
    (
        "train",
        run,
        "--gin_file=imported/operative_config.gin",
        "--gin.FILES={'train': 'table.tsv'}",
        "--gin.FEATURE_LENGTHS={'inputs': 8, 'targets': 4}",
        "--gin.TRAIN_STEPS=2",
        "--gin.BATCH_SIZE=2",
    ),
    ("score", run, "--input=pairs.tsv", "--output=scores.txt"),
    ("export", run),
):
    run_command(command, options)
    gin.clear_config()
END
[ "$(wc -l <scores.txt)" = 2 ]
ls imported/export/2/saved_model.pb >/dev/null
cut -f1 pairs.tsv | remixer_tf infer --model_dir="$work/imported" >answers.txt
[ "$(wc -l <answers.txt)" = 2 ]

echo "Asking for a task of T5's, which needs t5"
if remixer_tf train --model_dir="$work/t5" --gin_file=models/t5_1_1_tiny.gin \
  --gin_file=runs/mini_cogs.gin --gin.VOCABULARY_FILE="$work/pieces.model" \
  --gin.TASK=glue_rte_v002 >out.txt 2>&1; then
  echo "It trained without t5?"
  exit 1
fi
tail -1 out.txt
grep -q "^error: .*pip install --no-deps t5" out.txt
echo "The wheel works alone, away from the repository."
