"""Makes the runs, caches and exports in this folder, by the code of past commits.

    git worktree add --detach OLD COMMIT
    ln -s ../tasks ../gin OLD/remixer_tf    # as an installation has them
    (cd OLD && PYTHONPATH=. python make.py COMMIT FOLDER)

A run's expected.json has what that code itself said: the losses of four steps (the last
two of a run that resumed, with its position in the data), answers of `infer`, and what
`eval` wrote. Commits, and what changed since the one before:

    016f819  2026-11-22 03:48  the first that is read; `evaluate` had an evaluation's
                               settings
    33a8a37  2026-11-22 15:07  evaluations are parts; tables, the task tsv_files
    4f0f1ec  2026-11-23 05:04  caches; engines
    9844387  2026-11-25 01:00  Run, Schedule and other settings; metrics.jsonl, and
                               results with keys
    d025ee5  2026-11-25 20:36  adapters with frozen weights in step 0, exports

To keep it small, TensorBoard's files are left out, and all positions in the data but
those of 33a8a37/words and 4f0f1ec/cached.
"""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import shutil
import sys

# An editable installation of another commit must not be found.
sys.meta_path[:] = [x for x in sys.meta_path if "Editable" not in str(x)]

import gin  # noqa: E402

SIZES = {
    "D_MODEL": 8,
    "D_FF": 8,
    "D_KV": 4,
    "NUM_HEADS": 2,
    "NUM_ENCODER_LAYERS": 1,
    "NUM_DECODER_LAYERS": 1,
    "BATCH_SIZE": 4,
    "LENGTH_BUCKETS": "None",
    "WARMUP_STEPS": 1,
    "WarmupCosineDecay.total_steps": 8,
    "FEATURE_LENGTHS": "{'inputs': 16, 'targets': 8}",
}
BYTES = {"VOCABULARY": "@byte_vocabulary()", "VOCAB_SIZE": 259}
OLD = {  # before 2026-11-24 23:54
    "train.steps_per_call": 1,
    "train.log_period": 1,
    "train.checkpoint_period": 2,
    "train.keep_checkpoints": 1,
    "train_dataset.count_limit": 0,
    "train_dataset.shuffle": "False",
}
NEW = {
    "Schedule.steps_per_call": 1,
    "Schedule.log_period": 1,
    "Schedule.checkpoint_period": 2,
    "Checkpointing.keep": 1,
    "LongExamples.count_limit": 0,
    "Batching.shuffle": "False",
}
PAIRS = [
    ("red", "rot"),
    ("blue", "blau"),
    ("green", "gelb"),
    ("one", "eins"),
    ("two", "zwei"),
    ("six", "sechs"),
    ("cat", "katze"),
    ("dog", "hund"),
]
OTHERS = [("sun", "sonne"), ("tree", "baum"), ("sea", "meer"), ("rain", "regen")]
QUESTIONS = ["red", "one cat"]
TABLE = {
    "table_task.name": "'words'",
    "table_task.inputs": "'say: {word}'",
    "table_task.targets": "'{answer}'",
    "FILES": "{'train': 'train.tsv', 'validation': 'dev.tsv'}",
}
LOSS = {"evaluate.evaluations": "[@LossEvaluation()]"}


def command(name, **options):
    """Runs a command; returns what it prints."""
    bindings = options.pop("gin", {})
    arguments = [
        f"--{k}={x}"
        for k, v in options.items()
        for x in (v if isinstance(v, list) else [v])
    ]
    arguments += [f"--gin.{k}={v}" for k, v in bindings.items()]
    gin.clear_config()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if importlib.util.find_spec("remixer_tf.commands"):
            from remixer_tf.commands import run_command

            run_command(name, arguments)
        else:
            importlib.import_module(f"remixer_tf.{name}").main(arguments)
    return printed.getvalue()


def losses(folder):
    """Returns {step: loss of its batch}."""
    import tensorflow as tf

    found = {}
    lines = os.path.join(folder, "metrics.jsonl")
    if os.path.exists(lines):
        for line in open(lines):
            line = json.loads(line)
            if "loss" in line:
                found[line["step"]] = line["loss"]
        return found
    for root, _, names in os.walk(folder):
        for name in names:
            if "tfevents" in name and "train" in root:
                for event in tf.compat.v1.train.summary_iterator(f"{root}/{name}"):
                    for value in event.summary.value:
                        if value.tag == "loss":
                            found[event.step] = float(tf.make_ndarray(value.tensor))
    return found


def run(folder, train, questions=QUESTIONS, evaluation=LOSS):
    """Trains, asks, evaluates, continues a copy; writes expected.json."""
    command("train", model_dir=folder, **train)
    expected = {"commit": commit}
    pathlib.Path("questions.txt").write_text("\n".join(questions) + "\n")
    command(
        "infer",
        model_dir=folder,
        input="questions.txt",
        output="answers.txt",
        gin={"text_to_text.max_decode_length": 8},
    )
    expected["questions"] = questions
    expected["answers"] = pathlib.Path("answers.txt").read_text().splitlines()
    command("eval", model_dir=folder, gin=evaluation)
    if os.path.exists(f"{folder}/eval"):
        expected["results"] = {
            str(path.relative_to(folder)): json.loads(path.read_text())["metrics"]
            for path in sorted(pathlib.Path(folder).rglob("*.json"))
            if "eval" in path.parts
        }
    shutil.copytree(folder, f"{folder}.longer")
    longer = {**train, "gin": {**train["gin"], "TRAIN_STEPS": 4}}
    command("train", model_dir=f"{folder}.longer", **longer)
    expected["losses"] = losses(f"{folder}.longer")
    shutil.rmtree(f"{folder}.longer")
    shutil.rmtree(f"{folder}/tensorboard", ignore_errors=True)
    text = json.dumps(expected, indent=1) + "\n"
    pathlib.Path(f"{folder}/expected.json").write_text(text)


def tables():
    def write(name, pairs, head=True):
        lines = ["word\tanswer"] * head + ["\t".join(pair) for pair in pairs]
        pathlib.Path(name).write_text("\n".join(lines) + "\n")

    write("train.tsv", PAIRS)
    write("dev.tsv", OTHERS)
    if order == 1:
        os.mkdir("pairs")
        write("pairs/train.tsv", PAIRS, head=False)
        write("pairs/validation.tsv", OTHERS, head=False)


def main():
    era = OLD if order <= 3 else NEW
    t5, remixer = "models/t5_1_1_tiny.gin", "models/remixer_tiny.gin"
    steps = {**BYTES, **SIZES, **era, "TRAIN_STEPS": 2}
    few = {
        **LOSS,
        "LossEvaluation.max_examples": 8,
        "LossEvaluation.splits": "['dev']",
        "LossEvaluation.batch_size": 4,
    }
    if order == 0:
        few = {"evaluate.max_examples": 8, "evaluate.splits": "['dev']"}
    if order == 0:
        train = {
            "gin_file": [t5, "runs/mini_cogs.gin"],
            "gin": {**steps, "VOCABULARY_FILE": "None"},
        }
        run("mini_cogs", train, ["the cat slept", "Mia saw a dog"], few)
    if order >= 1:
        tables()
        own = "runs/own_task.gin"
        loss = {**LOSS, "LossEvaluation.batch_size": 4}
        if order <= 2:  # Its rate was constant.
            steps = {k: v for k, v in steps.items() if "ARMUP" not in k.upper()}
    if order in (1, 3, 4):
        train = {"gin_file": [t5, own], "gin": {**steps, **TABLE}}
        run("words", train, evaluation=loss)
    if order == 1:
        own = {**steps, "TASK": "'tsv_files'", "tsv_files.directory": "'pairs'"}
        own |= {"LEARNING_RATE": 0.01, "DROPOUT_RATE": 0.0}
        run(
            "pairs_run",
            {"gin_file": [t5, "runs/train.gin"], "gin": own},
            evaluation={**loss, "LossEvaluation.splits": "['validation']"},
        )
    if order == 5:
        lora = {**steps, **TABLE, "Run.adapters": "@Lora()", "Lora.rank": 2}
        run("lora", {"gin_file": [t5, own], "gin": lora}, evaluation=loss)
        for kind in ("adapters", "safetensors"):
            command("export", model_dir="lora", format=kind)
    if order in (2, 6):
        cache = {"VOCABULARY": BYTES["VOCABULARY"], **TABLE}
        shards = {"output_dir": "cache", "num_shards": 2}
        command("cache", **shards, gin_file=[own], gin=cache)
        gins = {**steps, **TABLE, "MAX_LENGTH": 16, "CACHE_DIR": "'cache'"}
        run("cached", {"gin_file": [remixer, own], "gin": gins}, evaluation=loss)


commit, folder = sys.argv[1:]
COMMITS = ["016f819", "33a8a37", "4f0f1ec", "", "9844387", "d025ee5", "7c01e1d"]
order = COMMITS.index(commit)
os.makedirs(folder, exist_ok=True)
os.chdir(folder)
main()
