"""Exports of a run, one function a format."""

import functools
import inspect
import os
import tempfile

from remixer_tf.errors import UserError, check_choices
from remixer_tf.startup import check_backend

# The types of weights that a format stores; others store float32.
WEIGHTS = {
    "saved_model": ("float32", "bfloat16", "float16", "int8"),
    "litert": ("float32", "int8", "int8_weight_only"),
    "onnx": ("float32", "int8"),
}
# Machines, and the format and type of weights that answer fastest there.
FASTEST = {"cpu": ("litert", "int8")}
BATCHING = ("wait_ms", "batches_at_once")  # of a SavedModel with batch_sizes
SEARCHES = ("greedy_decode", "beam_search")  # of LiteRT and ONNX
OF_TEXT = ("huggingface", "litert", "onnx")  # formats of models that write text


def serving_kind(run):
    """Returns the function that makes what answers for the model of a `Run`."""
    from remixer_tf.models import EncoderOnly, ImageClassifier  # late: start-up
    from remixer_tf.serving.image_to_class import image_to_class
    from remixer_tf.serving.text_encoder import text_encoder
    from remixer_tf.serving.text_to_text import text_to_text

    model = inspect.unwrap(run.model)
    of_class = {EncoderOnly: text_encoder, ImageClassifier: image_to_class}
    for kind, function in of_class.items():
        if inspect.isclass(model) and issubclass(model, kind):
            return function
    return text_to_text


def check_export(format, weights="float32", **options):
    """Raises a ValueError if `export_run` does not take these arguments."""
    check_choices(FORMATS, format=format)
    types = WEIGHTS.get(format, ("float32",))
    if weights not in types:
        raise UserError(
            f"format={format} stores weights as {' or '.join(types)}. Received: "
            f"weights={weights!r}"
        )
    if format != "saved_model" and any(options.values()):
        raise UserError(
            "batch_sizes, wait_ms, batches_at_once, max_rows and warm_up are for a "
            f"SavedModel. Received: format={format}"
        )
    if given := [name for name in BATCHING if options.get(name) is not None]:
        if not options.get("batch_sizes"):
            raise UserError(f"{given[0]} is for batches: give batch_sizes too.")


def export_run(
    configuration,
    run,
    model_dir,
    folder,
    *,
    step=None,
    format="saved_model",
    weights="float32",
    **options,
):
    """Exports a checkpoint of a run.

    Args:
        configuration: the `Configuration`, with the search that answers.
        run: its `Run`.
        model_dir, step: see `Run.restore`.
        folder: str, of the export. It appears when the export is whole.
        format: one of `FORMATS`. safetensors is a folder of any model to publish, with
            a model card and checksums, which `remixer_tf.load` reads. Hugging Face's is
            for T5.1.1 and T5.1.0, timm's for classifiers of images; LiteRT and ONNX,
            from ids to ids, are for models that write text, and need the extras of
            these names. All of them have adapters added to their kernels; "adapters" is
            a folder of the adapters alone, for `remixer_tf.load`.
        weights: str, one of `WEIGHTS` of the format. In a SavedModel, and with
            "int8_weight_only", the precision of the computation stays the same; with
            "int8" LiteRT and ONNX multiply integers, LiteRT but for Remixer's W_3 in
            encoders.
        **options: `batch_sizes`, `wait_ms`, `batches_at_once`, `max_rows` and `warm_up`
            of a SavedModel, see `remixer_tf.serving.saved_model.export`.

    Returns:
        list of str, lines that describe the export.

    Raises:
        FileExistsError: the folder exists.
        FileNotFoundError: there is no such checkpoint.
        OSError: the folder cannot be written.
        ImportError: an extra is not installed.
        ValueError: the format cannot hold the model, or an option does not fit.
    """
    from remixer_tf.checkpoints.whole_folder import check_absent

    check_export(format, weights, **options)
    check_backend("An export")
    check_absent(folder)  # before the model is built, which takes long
    if format in OF_TEXT and serving_kind(run).__name__ != "text_to_text":
        raise UserError(
            f"format={format} is for models that write text. Received: "
            f"{run.model.__name__}. Export it as saved_model, to serve it, or as "
            "safetensors, to publish it."
        )
    given = options if format == "saved_model" else {}
    if format in WEIGHTS:
        given = {**given, "weights": weights}
    return FORMATS[format](configuration, run, model_dir, step, folder, **given)


def _saved_model(configuration, run, model_dir, step, folder, weights, **options):
    from remixer_tf.serving import saved_model

    kind, given = serving_kind(run), {"step": step, "weights": weights}
    model, _ = configuration.call(kind, run, model_dir, **given)
    search = configuration.value(kind, "decode_fn")
    model.arguments = search.arguments() if search else {}
    text = configuration.text()
    signatures = saved_model.export(model, folder, text, **options)
    size = saved_model.size_on_disk(folder) / 1e6
    return [
        *saved_model.describe_signatures(signatures),
        f"{size:.1f} MB, weights in {weights}",
    ]


def _adapters(configuration, run, model_dir, step, folder):
    from remixer_tf.weights.adapters import save_adapters

    engine, _ = run.restore(model_dir, step, merge=False)
    save_adapters(engine.model, folder)
    return []


def _safetensors(configuration, run, model_dir, step, folder):
    from remixer_tf.data.vocabularies import describe_vocabularies
    from remixer_tf.evaluation.results import metrics_at
    from remixer_tf.weights.model_folder import model_card, write_model_folder

    engine, step = run.restore(model_dir, step)
    metrics = metrics_at(model_dir, step) if model_dir else {}
    vocabularies = {}
    if run.task is not None:
        vocabularies = describe_vocabularies(run.get_task())
    write_model_folder(
        engine.model,
        folder,
        configuration,
        vocabularies,
        model_card(engine.model, run, step, vocabularies, metrics),
    )
    return []


def _hugging_face(configuration, run, model_dir, step, folder):
    from remixer_tf.serving.text_to_text import text_to_text
    from remixer_tf.weights.generation import write_generation
    from remixer_tf.weights.to_hugging_face import export_hugging_face

    search = configuration.value(text_to_text, "decode_fn")
    length = (run.feature_lengths or {}).get("targets")
    generation, left_out = write_generation(
        search.__name__ if search else "greedy_decode",
        search.arguments() if search else {},
        configuration.value(text_to_text, "max_length", length),
    )
    clean_up = configuration.value(text_to_text, "clean_up_tokenization_spaces", False)
    engine, _ = run.in_float32().restore(model_dir, step)
    export_hugging_face(engine.model, run.get_task(), folder, generation, clean_up)
    return [f"transformers has no {line}" for line in left_out]


def _timm(configuration, run, model_dir, step, folder):
    from remixer_tf.checkpoints.whole_folder import whole_folder
    from remixer_tf.configuration import read
    from remixer_tf.models.build import build_model
    from remixer_tf.run import Run
    from remixer_tf.serving.image_to_class import image_to_class
    from remixer_tf.weights.formats import read_source
    from remixer_tf.weights.run import run_gin
    from remixer_tf.weights.to_timm import compare, write_timm

    transforms = configuration.value(image_to_class, "transforms") or ()
    given = {x.__name__: _all_arguments(x) for x in transforms}
    classes = configuration.value(image_to_class, "classes", ())
    engine, _ = run.in_float32().restore(model_dir, step)
    with whole_folder(folder) as place:
        write_timm(engine.model, place, given, classes)
        source = read_source(place)
        with tempfile.TemporaryDirectory() as other:
            file = os.path.join(other, "written.gin")
            with open(file, "w") as opened:
                opened.write(run_gin(source))
            written = read([file], [], complete=False)
        reference = build_model(written.value(Run, "model"), "float32")
        compare(engine.model, reference, source)
    return []


def _all_arguments(bound):
    """The arguments of a `Bound`, where nothing binds them the defaults."""
    parameters = inspect.signature(bound.__wrapped__).parameters.values()
    defaults = {x.name: x.default for x in parameters if x.default is not x.empty}
    return defaults | bound.arguments()


def _tokens(runtime, configuration, run, model_dir, step, folder, weights):
    from remixer_tf.serving.converted import check_runtime, export_tokens
    from remixer_tf.serving.saved_model import size_on_disk
    from remixer_tf.serving.text_to_text import text_to_text

    check_runtime(runtime)
    search = configuration.value(text_to_text, "decode_fn")
    if search is not None and search.__name__ not in SEARCHES:
        raise UserError(
            f"format={runtime} is for {' or '.join(SEARCHES)}: it has none of the "
            f"operations on unsigned integers that {search.__name__} draws with. Add "
            "--gin.text_to_text.decode_fn=@greedy_decode, or export a SavedModel."
        )
    # Neither runtime computes in bfloat16 on all processors.
    stored = configuration.value(text_to_text, "weights", "float32")
    given = {"dtype_policy": run.dtype_policy}
    if weights == "float32":
        given["weights"] = stored
    run = run.in_float32()
    model, _ = configuration.call(
        text_to_text, run, model_dir, step=step, weights="float32"
    )
    agreement = export_tokens(
        model.tokens, run.get_task(), runtime, folder, weights, configuration
    )
    lines = [
        f"{name} is {value} in the run, and float32 in this file"
        for name, value in given.items()
        if value != "float32"
    ]
    if weights != "float32":
        size = size_on_disk(folder) / 1e6
        lines.append(
            f"{size:.1f} MB, weights in {weights}: {agreement:.0%} of float32's tokens "
            "for random questions"
        )
    return lines


def answers_of_export(configuration, run, folder):
    """Loads an export of LiteRT or ONNX to answer texts, as its run's `infer` does.

    Args:
        configuration: the `Configuration` of the folder.
        run: its `Run`.
        folder: str.

    Returns:
        an `ExportedText`, which also names the errors.
    """
    from remixer_tf.serving.exported_text import ExportedText
    from remixer_tf.serving.text_to_text import text_to_text

    names = "skip_special_tokens", "clean_up_tokenization_spaces"
    given = {name: configuration.value(text_to_text, name, False) for name in names}
    return ExportedText(folder, run.get_task(), run.feature_lengths, **given)


# Each takes (configuration, run, model_dir, step, folder), and `weights` if `WEIGHTS`
# has the format; it returns lines that describe the export.
FORMATS = {
    "saved_model": _saved_model,
    "safetensors": _safetensors,
    "huggingface": _hugging_face,
    "timm": _timm,
    "litert": functools.partial(_tokens, "litert"),
    "onnx": functools.partial(_tokens, "onnx"),
    "adapters": _adapters,
}
