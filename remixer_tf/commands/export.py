"""Writes a SavedModel, safetensors, LiteRT, ONNX or Hugging Face files, or adapters.

A checkpoint of --model_dir becomes the SavedModel <model_dir>/export/<step>
(export_<type>/<step> with other --weights than float32), and the command prints what it
can be asked; or the folder <model_dir>/<format>/<step>, for `remixer_tf.load`,
transformers, timm, LiteRT or ONNX Runtime. All have adapters added to the kernels;
--format=adapters writes them alone. --for=cpu writes what answers fastest on CPUs:
`remixer_tf infer --model_dir=<model_dir>/litert_int8/<step>` asks it.
"""

import os

from remixer_tf import configuration
from remixer_tf.commands import add_number, sizes
from remixer_tf.errors import UserError
from remixer_tf.exporting import BATCHING, FASTEST, FORMATS, check_export, export_run


def add_arguments(parser):
    configuration.add_run(parser)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="saved_model if not given; safetensors is a folder to publish, of any "
        "model, which remixer_tf.load reads; huggingface is for T5.1.1 and T5.1.0, "
        "timm for classifiers of images; "
        "litert and onnx, from ids to ids, need extras of these names; adapters is "
        "what LoRA trained",
    )
    parser.add_argument(
        "--weights",
        metavar="TYPE",
        help="type of the weights: float32 if not given. In a SavedModel bfloat16, "
        "float16 or int8, and computing stays as it is. In LiteRT and ONNX int8, whose "
        "products are of integers, and in LiteRT int8_weight_only",
    )
    parser.add_argument(
        "--for",
        choices=FASTEST,
        dest="machine",
        help="in place of --format and --weights: those that answer texts fastest; for "
        "cpu litert and int8",
    )
    parser.add_argument(
        "--batch_sizes",
        type=sizes,
        metavar="M,N",
        help="a SavedModel computes concurrent requests together, in batches of these "
        "sizes, such as 1,8,32",
    )
    help = "milliseconds that a request waits for others, with --batch_sizes (5)"
    add_number(parser, "--wait_ms", help, least=0)
    help = "batches computed at the same time, with --batch_sizes (4)"
    add_number(parser, "--batches_at_once", help)
    help = "a SavedModel refuses requests of more rows; default: 512"
    add_number(parser, "--max_rows", help)
    parser.add_argument(
        "--warm_up",
        action="store_const",
        const=True,
        help="add requests that TensorFlow Serving answers before it takes others "
        "(needs the extra: serving)",
    )


def run(options):
    format, weights = options.format or "saved_model", options.weights or "float32"
    if options.machine:
        if options.format or options.weights:
            raise UserError(
                "--for chooses format and weights. Leave --format and --weights out."
            )
        format, weights = FASTEST[options.machine]
    for_saved_model = {
        name: value
        for name in ("batch_sizes", *BATCHING, "max_rows", "warm_up")
        if (value := getattr(options, name)) is not None
    }
    check_export(format, weights, **for_saved_model)
    settings = configuration.read_run(options)
    from remixer_tf.checkpoints.reading import choose_step
    from remixer_tf.run import Run
    from remixer_tf.training.run_folder import check_writable

    step = choose_step(options.model_dir, options.step)
    name = "export" if format == "saved_model" else format
    if weights != "float32":
        name += f"_{weights}"
    folder = os.path.join(options.model_dir, name, str(step))
    check_writable(options.model_dir)
    lines = export_run(
        settings,
        settings.call(Run),
        options.model_dir,
        folder,
        step=step,
        format=format,
        weights=weights,
        **for_saved_model,
    )
    print("\n".join([*lines, folder]))
