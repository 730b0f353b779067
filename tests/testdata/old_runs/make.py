"""Makes the runs, caches and exports in this folder, by the code of past commits.

    git worktree add --detach OLD COMMIT
    ln -s ../tasks ../gin OLD/remixer_tf    # as an installation has them
    (cd OLD && PYTHONPATH=. python make.py COMMIT FOLDER)

A run's expected.json has what that code itself said: answers of `infer`, what `eval`
wrote, and the losses of four steps. The last two are of a run that resumed, with its
position in the data. exports/expected.json has the answers of exports/KIND. Nothing in
FOLDER is made twice. FOLDER.tar.xz has all of it.

Commits, and what changed since the one before:

    016f819  2026-11-22 03:48  the first that is read; `evaluate` had an evaluation's
                               settings; a SavedModel was the model itself
    33a8a37  2026-11-22 15:07  evaluations are parts; tables, the task tsv_files;
                               LiteRT, ONNX and Hugging Face's form
    4f0f1ec  2026-11-23 05:04  caches; engines
    cc14ff1  2026-11-24 05:10  metrics.jsonl, and results with keys
    16936f2  2026-11-24 23:48  Run; gates of gMLP are layers
    9844387  2026-11-25 01:00  Schedule and other settings; .keras files
    d025ee5  2026-11-25 20:36  adapters with frozen weights in step 0, their exports
    7c01e1d  2026-11-26 07:33  the last without checksums and without its version

To keep it small, TensorBoard's files are left out, and all positions in the data but
those of 4f0f1ec and 7c01e1d. The run of gMLP from before 16936f2 is refused, and has
only its configuration.
"""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import shutil
import sys

import gin

COMMITS = [
    "016f819",
    "33a8a37",
    "4f0f1ec",
    "cc14ff1",
    "16936f2",
    "9844387",
    "d025ee5",
    "7c01e1d",
]
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
SMALLER = {"D_MODEL": 4, "D_FF": 4, "D_KV": 2}  # cc14ff1, 16936f2, 7c01e1d
BYTES = {"VOCABULARY": "@byte_vocabulary()", "VOCAB_SIZE": 259}
OLD = {  # before 9844387
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
    if os.path.exists(f"{folder}/expected.json"):
        return
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
    if commit not in ("4f0f1ec", "7c01e1d"):
        for file in pathlib.Path(folder).glob("checkpoints/*/data-*"):
            file.unlink()
    for name in ("questions.txt", "answers.txt"):
        os.remove(name)
    text = json.dumps(expected, indent=1) + "\n"
    pathlib.Path(f"{folder}/expected.json").write_text(text)


def tables():
    def write(name, pairs, head=True):
        lines = ["word\tanswer"] * head + ["\t".join(pair) for pair in pairs]
        pathlib.Path(name).write_text("\n".join(lines) + "\n")

    write("train.tsv", PAIRS)
    write("dev.tsv", OTHERS)
    if commit == "33a8a37":
        os.makedirs("pairs", exist_ok=True)
        write("pairs/train.tsv", PAIRS, head=False)
        write("pairs/validation.tsv", OTHERS, head=False)


def ask_saved_model(folder):
    """Asks a SavedModel QUESTIONS."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    model = tf.saved_model.load(folder)
    ask = model.signatures["serving_default"]
    (name,) = ask.structured_input_signature[1]
    answers = ask(**{name: tf.constant(QUESTIONS)})
    answers = {key: value.numpy().tolist() for key, value in answers.items()}
    for key in answers.keys() & {"outputs", "outputs_bytes"}:
        answers[key] = [text.decode("latin-1") for text in answers[key]]
    return {"input": name, **answers}


def ask_tokens(folder):
    """Asks a file of LiteRT or ONNX for the ids that answer QUESTIONS."""
    import numpy as np

    about = json.loads(pathlib.Path(folder, "model.json").read_text())
    rows = np.zeros([len(QUESTIONS), about["max_input_length"]], "int32")
    for row, question in zip(rows, QUESTIONS, strict=True):
        ids = [byte + 3 for byte in question.encode()] + [about["eos_id"]]
        row[: len(ids)] = ids
    if "signature" in about:
        from ai_edge_litert.interpreter import Interpreter

        model = Interpreter(f"{folder}/model.tflite")
        model = model.get_signature_runner(about["signature"])
        answers = [model(inputs=row[None]) for row in rows]
        outputs = [x["outputs"][0].tolist() for x in answers]
        scores = [float(x["scores"][0]) for x in answers]
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
        outputs, scores = session.run(["outputs", "scores"], {"inputs": rows})
        outputs, scores = outputs.tolist(), scores.tolist()
    return {"rows": rows.tolist(), "outputs": outputs, "scores": scores}


def export(run, *formats):
    """Exports a run, and asks the exports that other programs read.

    The others answer as the run does.
    """
    for kind in formats:
        folder = f"exports/{kind}"
        if not os.path.exists(folder):
            options = {"format": kind} if order else {}
            limit = {"text_to_text.max_decode_length": 8}
            command("export", model_dir=run, gin=limit, **options)
            place = pathlib.Path(run, "export" if kind == "saved_model" else kind)
            os.makedirs("exports", exist_ok=True)
            shutil.move(place / "2", folder)
            place.rmdir()
        if kind == "saved_model":
            expect(kind, ask_saved_model(folder))
        elif kind in ("litert", "onnx"):
            expect(kind, ask_tokens(folder))
        else:
            expect(kind, {"run": run})


def expect(kind, answers):
    """Adds what an export said to exports/expected.json."""
    path = pathlib.Path("exports/expected.json")
    expected = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**expected, kind: answers}) + "\n")


def keras_file():
    """Trains a model by Keras' fit, saves it, and returns what it predicts."""
    import numpy as np

    import remixer_tf as rt

    sizes = dict(d_model=4, d_ff=4, num_heads=2, vocab_size=16, max_length=8)
    layers = dict(num_encoder_layers=1, num_decoder_layers=1)
    model = rt.create("remixer_tiny", **sizes, **layers)
    tokens = np.arange(2, 14, dtype="int32").reshape(2, 6)
    batch = {
        "encoder_input_tokens": tokens,
        "decoder_input_tokens": np.pad(tokens, [(0, 0), (1, 0)])[:, :-1],
        "decoder_target_tokens": tokens,
        "decoder_loss_weights": np.ones_like(tokens),
    }
    from remixer_tf.optimizers import bert_adamw

    model.compile(bert_adamw(1e-3))
    model.fit(batch, batch_size=2, epochs=1, verbose=0)
    os.makedirs("exports/keras")
    model.save("exports/keras/model.keras")
    logits = model.predict(batch, verbose=0)
    return {
        "batch": {name: x.tolist() for name, x in batch.items()},
        "logits": np.asarray(logits).tolist(),
        "losses": model.fit(batch, epochs=2, verbose=0).history["loss"],
    }


def main():
    era = OLD if order < COMMITS.index("9844387") else NEW
    t5, remixer = "models/t5_1_1_tiny.gin", "models/remixer_tiny.gin"
    steps = {**BYTES, **SIZES, **era, "TRAIN_STEPS": 2}
    if commit in ("cc14ff1", "16936f2", "7c01e1d"):
        steps |= SMALLER
    few = {
        **LOSS,
        "LossEvaluation.max_examples": 8,
        "LossEvaluation.splits": "['dev']",
        "LossEvaluation.batch_size": 4,
    }
    own = "runs/own_task.gin"
    loss = {**LOSS, "LossEvaluation.batch_size": 4}
    if commit == "016f819":
        few = {"evaluate.max_examples": 8, "evaluate.splits": "['dev']"}
        train = {
            "gin_file": [t5, "runs/mini_cogs.gin"],
            "gin": {**steps, "VOCABULARY_FILE": "None"},
        }
        run("mini_cogs", train, ["the cat slept", "Mia saw a dog"], few)
        export("mini_cogs", "saved_model")
    else:
        tables()
    if order <= COMMITS.index("4f0f1ec"):  # Its rate was constant.
        steps = {k: v for k, v in steps.items() if "ARMUP" not in k.upper()}
    if commit in ("33a8a37", "9844387"):
        train = {"gin_file": [t5, own], "gin": {**steps, **TABLE}}
        run("words", train, evaluation=loss)
    if commit == "33a8a37":
        own_files = {"TASK": "'tsv_files'", "tsv_files.directory": "'pairs'"}
        own_files |= {"LEARNING_RATE": 0.01, "DROPOUT_RATE": 0.0}
        run(
            "pairs_run",
            {"gin_file": [t5, "runs/train.gin"], "gin": {**steps, **own_files}},
            evaluation={**loss, "LossEvaluation.splits": "['validation']"},
        )
        export("words", "saved_model", "huggingface", "litert", "onnx")
    if commit in ("4f0f1ec", "cc14ff1", "7c01e1d"):
        cache = {"VOCABULARY": BYTES["VOCABULARY"], **TABLE}
        shards = {"output_dir": "cache", "num_shards": 2}
        command("cache", **shards, gin_file=[own], gin=cache)
        gins = {**steps, **TABLE, "CACHE_DIR": "'cache'"}
        model = t5 if commit == "7c01e1d" else remixer
        gins |= {} if model == t5 else {"MAX_LENGTH": 16}
        run("cached", {"gin_file": [model, own], "gin": gins}, evaluation=loss)
    if commit in ("cc14ff1", "16936f2"):
        gins = {**steps, **TABLE, "MAX_LENGTH": 16}
        gmlp = "models/gmlp_tiny.gin"
        run("gmlp", {"gin_file": [gmlp, own], "gin": gins}, evaluation=loss)
        if commit == "cc14ff1":
            text = pathlib.Path("gmlp/operative_config.gin").read_text()
            shutil.rmtree("gmlp")
            os.mkdir("gmlp")
            pathlib.Path("gmlp/operative_config.gin").write_text(text)
    if commit == "d025ee5":
        lora = {**steps, **TABLE, "Run.adapters": "@Lora()", "Lora.rank": 2}
        run("lora", {"gin_file": [t5, own], "gin": lora}, evaluation=loss)
        export("lora", "adapters", "safetensors")
    if commit == "7c01e1d":
        kinds = "saved_model", "safetensors", "huggingface", "litert", "onnx"
        export("cached", *kinds)
    if commit in ("9844387", "7c01e1d"):
        expect("keras", keras_file())


if __name__ == "__main__":
    # An editable installation of another commit must not be found.
    sys.meta_path[:] = [x for x in sys.meta_path if "Editable" not in str(x)]
    commit, folder = sys.argv[1:]
    order = COMMITS.index(commit)
    os.makedirs(folder, exist_ok=True)
    with contextlib.chdir(folder):
        main()
    shutil.make_archive(folder, "xztar", folder)
