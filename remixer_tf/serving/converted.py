"""A model's graph as a file of LiteRT or ONNX, compared with TensorFlow's answers."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

from remixer_tf import __version__
from remixer_tf.checkpoints.export_folder import CONFIGURATION, DESCRIPTION
from remixer_tf.checkpoints.vocabularies import name_copies, remember_vocabularies
from remixer_tf.checkpoints.whole_folder import check_absent, whole_folder
from remixer_tf.data.file_states import file_digest
from remixer_tf.data.vocabularies import describe_vocabulary, is_text
from remixer_tf.errors import UserError, library
from remixer_tf.serving import litert, onnx_runtime

RUNTIMES = {"litert": litert, "onnx": onnx_runtime}
MAX_BYTES = 2**31  # of either format's file


def check_runtime(name):
    """Raises ImportError if the extra of a runtime of `RUNTIMES` is not installed."""
    for module in RUNTIMES[name].MODULES:
        library(module, f"--format={name}", RUNTIMES[name].EXTRA)


def export_tokens(graph, task, name, folder, weights="float32", configuration=None):
    """Writes the search of a model, from ids to ids, as a file of another runtime.

    The folder also has the files of the vocabularies and `model.json`: the names, types
    and shapes (null: any) of inputs and outputs, the meaning of ids, and the file's
    checksum. Returns the part of TensorFlow's tokens that a file with rounded weights
    gives for random questions; 1.0 in float32.

    Args:
        graph: a `TokenGraph` of a model in float32, with weights in float32.
        task: the `seqio.Task` or `seqio.Mixture` of the model.
        name: str, one of `RUNTIMES`.
        folder: str. It appears when the runtime has given TensorFlow's answers.
        weights: str, "float32", "int8" (products of integers), or, in LiteRT alone,
            "int8_weight_only". The float32 file is compared before it is rounded.
        configuration: the `Configuration` of the run, which the folder keeps for
            `remixer_tf.load`. None to keep none.

    Raises a FileExistsError if the folder exists, an OSError if it cannot be written,
    an ImportError as `check_runtime`, and a ValueError if the model cannot decode, the
    format lacks an operation, the weights are too large for it or not finite, or its
    answers differ from TensorFlow's.
    """
    check_runtime(name)
    check_absent(folder)
    runtime = RUNTIMES[name]
    if graph.weights.num_bytes >= MAX_BYTES:
        raise UserError(
            f"A file of {runtime.NAME} ends at {MAX_BYTES / 1e9:.1f} GB, and the "
            f"weights take {graph.weights.num_bytes / 1e9:.1f} GB. Export a smaller "
            "model, or a SavedModel."
        )
    graph.weights.check_finite()
    if reason := graph.cannot_decode():
        raise UserError(f"{reason} As it is, safetensors holds it.")
    own = task.output_features
    features = {n: own.get(n, own["targets"]) for n in ("inputs", "targets")}
    vocabularies = {n: feature.vocabulary for n, feature in features.items()}
    graph.jit_compile = False  # Neither runtime has XLA.
    function = graph.function()
    examples = example_tokens(graph.input_length, vocabularies["inputs"].vocab_size)
    with tempfile.TemporaryDirectory() as local, whole_folder(folder) as place:
        path = os.path.join(local, runtime.FILE)
        try:
            functions = [graph.function(rows) for rows in runtime.BATCHES]
            runtime.convert(graph, functions, path)
            compare(runtime, path, function, examples)
            agreement = 1.0
            if weights != "float32":
                runtime.quantize(path, graph.weights.matrices(), weights)
                agreement = token_agreement(runtime, path, function, examples)
        except ValueError as error:
            others = ["another search (text_to_text.decode_fn)"]
            if "FFT" in str(error):
                others = [f"'matmul' as {name}" for name in graph.transforms()]
            ways = ", or ".join(["Export a SavedModel", *others])
            raise UserError(f"{error} Nothing was written. {ways}.") from error
        texts = {name: x.vocabulary for name, x in own.items() if is_text(x)}
        kept = {name: describe_vocabulary(x) for name, x in texts.items()}
        kept = remember_vocabularies(place, kept)
        content = _describe_graph(runtime, functions[0]) | {
            "version": __version__,
            "sha256": file_digest(path),
            "weights": weights,
            "pad_id": 0,
            "eos_id": vocabularies["targets"].eos_id,
            "inputs_end_with_eos": "inputs" in own and features["inputs"].add_eos,
            "max_input_length": graph.input_length,
            "language_model": graph.language_model,
            "vocabularies": {
                n: _describe(v, kept.get(n, kept["targets"]).get("file"))
                for n, v in vocabularies.items()
            },
        }
        written = {DESCRIPTION: json.dumps(content, indent=2) + "\n"}
        if configuration is not None:
            written[CONFIGURATION] = name_copies(configuration, place)
        for file, text in written.items():
            with tf.io.gfile.GFile(os.path.join(place, file), "w") as opened:
                opened.write(text)
        tf.io.gfile.copy(path, os.path.join(place, runtime.FILE))
    return agreement


def example_tokens(length, vocab_size):
    """Returns random ids, int32 `[rows, length]`: rows of one id, up to full ones."""
    lengths = sorted({1, min(2, length), (length + 1) // 2, max(length - 1, 1), length})
    first = min(2, vocab_size - 1)  # after padding and EOS, if there is another
    ids = np.random.default_rng(0).integers(first, vocab_size, [len(lengths), length])
    return np.where(np.arange(length) < np.array(lengths)[:, None], ids, 0).astype(
        "int32"
    )


def compare(runtime, path, function, examples):
    """Checks that a file answers as its graph does, row by row and several at once.

    Raises a ValueError if integers differ, or other numbers by more than 0.1%.

    Args:
        runtime: one of the values of `RUNTIMES`.
        path: str, of the file.
        function: the graph, a `tf.function` of one argument; of one row or any number.
        examples: `[rows, ..]`, its input.
    """
    (spec,) = function.input_signature
    batches = [examples[row : row + 1] for row in range(len(examples))]
    if spec.shape[0] is None:
        batches.append(np.resize(examples, [litert.BATCHES[-1], examples.shape[1]]))
    received = _run(runtime, path, spec.name, batches)
    for batch, answers in zip(batches, received, strict=True):
        for name, expected in function(tf.constant(batch)).items():
            expected, answer = expected.numpy(), answers[name]
            where = _first_difference(expected, answer)
            if where is not None:
                raise UserError(
                    f"{runtime.NAME} answers otherwise than TensorFlow: "
                    f"{name}{list(where)} is {answer[where]}, not {expected[where]}, "
                    f"for {spec.name} {batch.tolist()}."
                )


def token_agreement(runtime, path, function, examples):
    """Compares a file with rounded weights with its graph in float32, row by row.

    The arguments are those of `compare`. Returns the part of the tokens of `outputs`
    that are equal, a float. Raises a ValueError if a score is not finite.
    """
    (spec,) = function.input_signature
    batches = [examples[row : row + 1] for row in range(len(examples))]
    received = _run(runtime, path, spec.name, batches)
    if not all(np.isfinite(answers["scores"]).all() for answers in received):
        raise UserError(f"With weights in int8, {runtime.NAME} gives no finite scores.")
    equal = [
        answers["outputs"] == function(tf.constant(batch))["outputs"].numpy()
        for batch, answers in zip(batches, received, strict=True)
    ]
    return float(np.mean(equal))


def _run(runtime, path, name, batches):
    """Returns a file's answers to batches of the input of this name."""
    try:
        run = runtime.load(path)
        return [run(**{name: batch}) for batch in batches]
    except Exception as error:  # a runtime's own, of no public class
        raise UserError(
            f"{runtime.NAME} cannot run what its converter wrote: {error}"
        ) from error


def _first_difference(expected, received):
    """The index of the first element that differs, or None."""
    if expected.shape != received.shape:
        return ()
    if expected.dtype.kind == "f":
        equal = np.isclose(received, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
    else:
        equal = received == expected
    return None if equal.all() else tuple(int(x) for x in np.argwhere(~equal)[0])


def _describe_graph(runtime, function):
    """Returns the names, types and shapes of `model.json`."""
    outputs = function.get_concrete_function().structured_outputs
    (spec,) = function.input_signature

    def describe(tensor):
        return {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}

    return {
        "format": runtime.NAME,
        "file": runtime.FILE,
        **runtime.CALL,
        "inputs": {spec.name: describe(spec)},
        "outputs": {name: describe(x) for name, x in sorted(outputs.items())},
        "max_decode_length": outputs["outputs"].shape[-1],
    }


def _describe(vocabulary, file):
    size = {"size": vocabulary.vocab_size, "extra_ids": vocabulary.extra_ids}
    if file is None:
        return {"kind": type(vocabulary).__name__, **size}
    if tokens := getattr(vocabulary, "added_tokens", ()):
        size["added_tokens"] = {token.text: token.id for token in tokens}
    kind = "tokenizers" if file.endswith(".json") else "SentencePiece"
    return {"kind": kind, "file": file, **size}
