"""Writes a run for others to use: python -m remixer_tf.export --model_dir=DIR ..."""

import os

from remixer_tf import configuration

FORMATS = ("saved_model", "huggingface", "litert", "onnx")


def main(arguments):
    """Parses the command line and exports."""
    options = configuration.parse_run(
        arguments,
        "Writes a checkpoint of --model_dir as the SavedModel <model_dir>/export/"
        "<step>, strings in, answers and scores out; or as the folder <model_dir>/"
        "<format>/<step>, for transformers, LiteRT or ONNX Runtime.",
        _add_arguments,
    )
    if options.format == "saved_model":
        path = _saved_model(options.model_dir, options.step)
    elif options.format == "huggingface":
        path = _hugging_face(options.model_dir, options.step)
    else:
        path = _tokens(options.model_dir, options.step, options.format)
    print(path)


def _saved_model(model_dir, step):
    model, step = configuration.call("text_to_text", model_dir, step=step)
    from remixer_tf.serving.saved_model import export

    folder = os.path.join(model_dir, "export")
    return export(model, folder, step, configuration.configuration_str())


def _hugging_face(model_dir, step):
    from remixer_tf.checkpoints.reading import restore_model
    from remixer_tf.data.pipeline import get_task
    from remixer_tf.models.build import build_model
    from remixer_tf.weights.to_hugging_face import export_hugging_face

    model = configuration.get_value("train.model")
    task = configuration.get_value("text_to_text.task")
    if model is None or task is None:
        raise configuration.UserError(
            "the configuration names no model and task of text (train.model, "
            "text_to_text.task). Add the files of the run with --gin_file."
        )
    task = get_task(task, configuration.get_value("text_to_text.vocabulary"))
    model = build_model(model, "float32")
    step = restore_model(model_dir, model, step)
    folder = os.path.join(model_dir, "huggingface", str(step))
    return export_hugging_face(model, task, folder)


def _tokens(model_dir, step, runtime):
    from remixer_tf.data.pipeline import get_task
    from remixer_tf.serving.converted import check_runtime, export_tokens

    check_runtime(runtime)
    # Neither runtime computes in bfloat16 on all processors.
    precision = {"dtype_policy": "float32", "weights": "float32"}
    for name, value in precision.items():
        given = configuration.get_value(f"text_to_text.{name}", value)
        if given != value:
            print(f"{name} is {given} in the run, and float32 in this file")
    model, step = configuration.call("text_to_text", model_dir, step=step, **precision)
    task = configuration.get_value("text_to_text.task")
    task = get_task(task, configuration.get_value("text_to_text.vocabulary"))
    folder = os.path.join(model_dir, runtime, str(step))
    export_tokens(model.tokens, task, runtime, folder)
    return folder


def _add_arguments(parser):
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="saved_model if not given; huggingface is for T5.1.1 and T5.1.0; litert "
        "and onnx, from ids to ids, need extras of these names",
    )


if __name__ == "__main__":
    configuration.run_binary(main)
