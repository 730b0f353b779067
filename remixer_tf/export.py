"""Writes a run for others to use: python -m remixer_tf.export --model_dir=DIR ..."""

import os

from remixer_tf import configuration

FORMATS = ("saved_model", "huggingface")


def main(arguments):
    """Parses the command line and exports."""
    options = configuration.parse_run(
        arguments,
        "Writes a checkpoint of --model_dir as the SavedModel <model_dir>/export/"
        "<step>, strings in, answers and scores out; or as the folder <model_dir>/"
        "huggingface/<step>, which transformers loads.",
        _add_arguments,
    )
    write = _saved_model if options.format == "saved_model" else _hugging_face
    print(write(options.model_dir, options.step))


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


def _add_arguments(parser):
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="saved_model if not given; huggingface is for T5.1.1 and T5.1.0",
    )


if __name__ == "__main__":
    configuration.run_binary(main)
