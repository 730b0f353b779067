"""Loss, exact match and size of models with weights in 8 bits, format by format.

    python -m benchmarks.int8_quality MODEL_DIR... [--splits=test,gen] [--examples=1000]
    python -m benchmarks.int8_quality MODEL_DIR... --searches
    python -m benchmarks.int8_quality PRESET... --presets

Each folder has a trained run of text. Its loss is that of the given targets, in nats a
token. Exact match is the part of the examples where each target token is the likeliest,
so that greedy decoding would write it. All formats score the same graph: a SavedModel
in batches of 32, LiteRT and ONNX Runtime example by example. Sizes are those of the
weights in a SavedModel, and of the files of the scoring graph. `--searches` prints
the sizes of the files that `export` writes, which search greedily or with 4 beams.
`--presets` prints the sizes of models with random weights: of the weights in a
SavedModel, and of files that search greedily.
"""

import argparse
import functools
import itertools
import os
import tempfile

import numpy as np
import tensorflow as tf

import remixer_tf
from benchmarks.measure import print_header, print_row
from remixer_tf import configuration
from remixer_tf.decoding import T5Rules, beam_search, greedy_decode, score
from remixer_tf.models import EncoderOnly, ImageClassifier
from remixer_tf.run import Run
from remixer_tf.serving import litert, onnx_runtime
from remixer_tf.serving.stored_weights import StoredWeights
from remixer_tf.serving.token_graph import TokenGraph

FILES = [  # name, runtime, weights
    ("LiteRT float32", litert, "float32"),
    ("LiteRT int8_weight_only", litert, "int8_weight_only"),
    ("LiteRT int8", litert, "int8"),
    ("ONNX float32", onnx_runtime, "float32"),
    ("ONNX int8", onnx_runtime, "int8"),
]


def examples_of(run, split, number):
    """Returns ids of inputs and of targets, int32 `[number, length]`, padded."""
    data = run.get_task().get_dataset(run.feature_lengths, split, shuffle=False)
    rows = list(itertools.islice(data.as_numpy_iterator(), number))
    arrays = []
    for name in ("inputs", "targets"):
        length = run.feature_lengths[name]
        ids = [np.asarray(row[name], "int32")[:length] for row in rows]
        arrays.append(np.stack([np.pad(x, (0, length - len(x))) for x in ids]))
    return arrays


def scorer(model, weights, lengths, batch_size):
    """A `tf.Module` with a graph that scores targets, `function`."""
    specs = [
        tf.TensorSpec([batch_size, lengths[name]], tf.int32, name=name)
        for name in ("inputs", "targets")
    ]

    @tf.function(input_signature=specs, autograph=False)
    def function(inputs, targets):
        batch = {
            "encoder_input_tokens": inputs,
            "decoder_input_tokens": tf.pad(targets, [[0, 0], [1, 0]])[:, :-1],
            "decoder_target_tokens": targets,
            "decoder_loss_weights": tf.cast(targets > 0, tf.int32),
        }
        with module.weights.reading():
            scores = score(model, batch)
        greedy = tf.cast(scores.greedy, tf.int32)
        return {"sums": scores.sums, "tokens": scores.num_tokens, "greedy": greedy}

    module = tf.Module()
    module.weights = StoredWeights(model, weights)
    module.function = function
    return module


def quality(run, inputs, targets, batch_size):
    """Returns nats a token, and the part of the examples that match.

    Args:
        run: function of `inputs` and `targets`, see `scorer`.
    """
    totals = np.zeros(3)
    for start in range(0, len(inputs), batch_size):
        rows = slice(start, start + batch_size)
        answers = run(inputs=inputs[rows], targets=targets[rows])
        totals += [np.sum(answers[name]) for name in ("sums", "tokens", "greedy")]
    return -totals[0] / totals[1], totals[2] / len(inputs)


def measure(model_dir, splits, number, folder):
    """Prints the rows of one run."""
    file = os.path.join(model_dir, "operative_config.gin")
    run = configuration.read([file], []).call(Run)
    model = run.restore(model_dir)[0].model
    data = {split: examples_of(run, split, number) for split in splits}
    float32 = {}
    name = os.path.basename(os.path.normpath(model_dir))

    def report(kind, size, function, batch_size, base):
        for split, (inputs, targets) in data.items():
            loss, match = quality(function, inputs, targets, batch_size)
            sizes, losses, matches = float32.setdefault(
                (base, split), (size, loss, match)
            )
            print_row(
                name,
                kind,
                f"{size / 1e6:.2f}",
                f"{size / sizes:.3f}",
                split,
                f"{loss:.5f}",
                f"{loss / losses - 1:+.2%}",
                f"{match:.1%}",
                f"{100 * (match - matches):+.1f}",
            )

    for weights in ("float32", "int8"):
        module = scorer(model, weights, run.feature_lengths, None)
        size = module.weights.num_bytes
        report(f"SavedModel {weights}", size, module.function, 32, "tf")
    module = scorer(model, "float32", run.feature_lengths, 1)
    for kind, runtime, weights in FILES:
        path = os.path.join(folder, runtime.FILE)
        if weights == "float32":
            runtime.convert(module, [module.function], path)
            with open(path, "rb") as file:
                content = file.read()
        else:
            with open(path, "wb") as file:
                file.write(content)
            runtime.quantize(path, module.weights.matrices(), weights)
        report(kind, os.path.getsize(path), runtime.load(path), 1, runtime)


def print_size(name, kind, search, float32, eight):
    sizes = (f"{float32 / 1e6:.2f}", f"{eight / 1e6:.2f}", f"{eight / float32:.3f}")
    print_row(name, kind, search, *sizes)


def sizes_of_files(name, model, lengths, searches, folder):
    """Prints the sizes of one model's files, for each format and search."""
    for runtime, (search, decode) in itertools.product(
        (litert, onnx_runtime), searches.items()
    ):
        graph = TokenGraph(
            model,
            input_length=lengths["inputs"],
            max_length=lengths["targets"],
            decode_fn=decode,
            jit_compile=False,
        )
        path = os.path.join(folder, runtime.FILE)
        functions = [graph.function(rows) for rows in runtime.BATCHES]
        runtime.convert(graph, functions, path)
        float32 = os.path.getsize(path)
        runtime.quantize(path, graph.weights.matrices(), "int8")
        print_size(name, runtime.NAME, search, float32, os.path.getsize(path))


def sizes_of_searches(model_dir, folder):
    """Prints the sizes of one run's files."""
    file = os.path.join(model_dir, "operative_config.gin")
    run = configuration.read([file], []).call(Run)
    model = run.restore(model_dir)[0].model
    name = os.path.basename(os.path.normpath(model_dir))
    beams = functools.partial(beam_search, beams=4, rules=T5Rules())
    searches = {"greedy": greedy_decode, "4 beams": beams}
    sizes_of_files(name, model, run.feature_lengths, searches, folder)


def sizes_of_preset(name, folder):
    """Prints the sizes of a preset with random weights, by which none is left out."""
    model = remixer_tf.create(name)
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape, scale=0.05).astype("float32"))
    sizes = [StoredWeights(model, kind).num_bytes for kind in ("float32", "int8")]
    print_size(name, "SavedModel", "", *sizes)
    if not isinstance(model, (EncoderOnly, ImageClassifier)):
        lengths = {"inputs": 64, "targets": 64}
        sizes_of_files(name, model, lengths, {"greedy": greedy_decode}, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL_DIR")
    parser.add_argument("--splits", default="test,gen")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--searches", action="store_true")
    parser.add_argument("--presets", action="store_true")
    options = parser.parse_args()
    if options.searches or options.presets:
        print_sizes = sizes_of_preset if options.presets else sizes_of_searches
        sizes = "float32 (MB)", "int8 (MB)", "of float32"
        print_header("model", "format", "search", *sizes)
        for model in options.models:
            with tempfile.TemporaryDirectory() as folder:
                print_sizes(model, folder)
        return
    print_header(
        "run",
        "stored as",
        "size (MB)",
        "of float32",
        "split",
        "loss",
        "change",
        "exact match",
        "change (points)",
    )
    for model_dir in options.models:
        with tempfile.TemporaryDirectory() as folder:
            measure(model_dir, options.splits.split(","), options.examples, folder)


if __name__ == "__main__":
    main()
