"""Writes a SavedModel, LiteRT, ONNX or Hugging Face files.

The command writes a checkpoint of --model_dir as the SavedModel
<model_dir>/export/<step> (export_<type>/<step> with other --weights than float32), and
prints its signatures; or as the folder <model_dir>/<format>/<step>, for transformers,
LiteRT or ONNX Runtime.
"""

import dataclasses
import os

from remixer_tf import configuration
from remixer_tf.errors import UserError

FORMATS = ("saved_model", "huggingface", "litert", "onnx")
# The export of each class of models; others export text_to_text.
KINDS = {"EncoderOnly": "text_encoder", "ImageClassifier": "image_to_class"}


def add_arguments(parser):
    configuration.add_run(parser)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="saved_model if not given; huggingface is for T5.1.1 and T5.1.0; litert "
        "and onnx map ids to ids, and need the extras of these names",
    )
    parser.add_argument(
        "--weights",
        default="float32",
        metavar="TYPE",
        help="type of the weights in a SavedModel: float32 (if not given), or, at half "
        "the size, bfloat16 or float16. Computing stays as it is",
    )
    parser.add_argument(
        "--batch_sizes",
        type=lambda text: [int(size) for size in text.split(",")],
        default=[],
        metavar="M,N",
        help="a SavedModel computes concurrent requests together, in batches of these "
        "sizes, such as 1,8,32",
    )
    help = "a SavedModel refuses requests of more rows; default: 512"
    configuration.add_number(parser, "--max_rows", help)
    configuration.add_flag(
        parser,
        "--warm_up",
        "add requests that TensorFlow Serving answers before it takes others (needs "
        "the extra: serving)",
    )


def run(options):
    given = options.batch_sizes or options.max_rows or options.warm_up
    if options.format != "saved_model" and (given or options.weights != "float32"):
        raise UserError(
            "--weights, --batch_sizes, --max_rows and --warm_up are for a SavedModel. "
            f"Received: --format={options.format}"
        )
    configuration.read_run(options)
    configuration.check_on_tensorflow("An export")
    from remixer_tf.checkpoints.reading import choose_step
    from remixer_tf.checkpoints.whole_folder import check_absent
    from remixer_tf.training.checks import check_writable

    step = options.step = choose_step(options.model_dir, options.step)
    name = "export" if options.format == "saved_model" else options.format
    if options.weights != "float32":
        name += f"_{options.weights}"
    folder = os.path.join(options.model_dir, name, str(step))
    # Before the model is built, which takes long.
    check_absent(folder)
    check_writable(options.model_dir)
    if options.format == "saved_model":
        _saved_model(options, folder)
    elif options.format == "huggingface":
        _hugging_face(options, folder)
    else:
        _tokens(options, folder)
    print(folder)


def _saved_model(options, folder):
    kind = _kind(configuration.call("Run").model)
    model, _ = configuration.call_on_run(kind, options, weights=options.weights)
    from remixer_tf.serving import saved_model
    from remixer_tf.serving.limits import MAX_ROWS

    _, signatures = saved_model.export(
        model,
        os.path.dirname(folder),
        options.step,
        configuration.configuration_str(),
        options.batch_sizes,
        options.warm_up,
        options.max_rows or MAX_ROWS,
    )
    print("\n".join(saved_model.describe_signatures(signatures)))
    size = saved_model.size_on_disk(folder) / 1e6
    print(f"{size:.1f} MB, weights in {options.weights}")


def _kind(model):
    """Returns the name of the export of a model's class."""
    names = (c.__name__ for c in getattr(model, "__mro__", ()))
    return next((KINDS[name] for name in names if name in KINDS), "text_to_text")


def _hugging_face(options, folder):
    from remixer_tf.checkpoints.reading import restore_model
    from remixer_tf.models.build import build_model
    from remixer_tf.weights.generation import write_generation
    from remixer_tf.weights.to_hugging_face import export_hugging_face

    names = "Run.model", "Run.task"
    if any(configuration.get_value(name) is None for name in names):
        raise UserError(
            "the configuration names no model and task of text (Run.model, Run.task). "
            "Add the files of the run with --gin_file."
        )
    run = configuration.call("Run")
    model = build_model(run.model, "float32")
    restore_model(options.model_dir, model, options.step)
    search = configuration.get_value("text_to_text.decode_fn")
    length = run.feature_lengths["targets"]
    generation, left_out = write_generation(
        search.__name__ if search else "greedy_decode",
        configuration.get_arguments("text_to_text.decode_fn"),
        configuration.get_value("text_to_text.max_decode_length", length),
    )
    export_hugging_face(model, run.get_task(), folder, generation)
    for line in left_out:
        print(f"transformers has no {line}")


def _tokens(options, folder):
    from remixer_tf.serving.converted import check_runtime, export_tokens

    runtime = options.format
    check_runtime(runtime)
    search = configuration.get_value("text_to_text.decode_fn")
    if search is not None and search.__name__ != "greedy_decode":
        raise UserError(
            f"--format={runtime} is for greedy decoding: its converter makes other "
            f"answers of {search.__name__}, or none. Add "
            "--gin.text_to_text.decode_fn=@greedy_decode, or export a SavedModel."
        )
    # Neither runtime computes in bfloat16 on all processors.
    run = configuration.call("Run")
    weights = configuration.get_value("text_to_text.weights", "float32")
    for name, given in (("dtype_policy", run.dtype_policy), ("weights", weights)):
        if given != "float32":
            print(f"{name} is {given} in the run, and float32 in this file")
    run = dataclasses.replace(run, dtype_policy="float32")
    model, _ = configuration.call(
        "text_to_text", run, options.model_dir, step=options.step, weights="float32"
    )
    export_tokens(model.tokens, run.get_task(), runtime, folder)
