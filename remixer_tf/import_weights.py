"""Makes a run of published weights.

    python -m remixer_tf.import_weights --from=FOLDER_OR_FILE --model_dir=RUN

See `remixer_tf.weights.formats` for what it reads.
"""

import os
import tempfile

from remixer_tf import configuration


def main(arguments):
    """Parses the command line and imports."""
    options = configuration.parse_command_line(
        arguments,
        "Makes --model_dir a run that starts from published weights: a checkpoint of "
        "step 0, and the configuration that infer, eval, train and export read.",
        _add_arguments,
    )
    from remixer_tf.checkpoints.name_table import name_table
    from remixer_tf.data.pipeline import get_task
    from remixer_tf.data.vocabularies import describe_vocabularies
    from remixer_tf.models.build import build_model
    from remixer_tf.weights import formats, run
    from remixer_tf.weights.generation import describe_left_out
    from remixer_tf.weights.source import take

    run.check_new(options.model_dir)
    source = formats.read_source(options.source)
    given = options.gin_bindings
    of_text = source.extra_ids is not None
    if of_text and not (
        options.vocabulary
        or source.vocabulary
        or any(binding.startswith("VOCABULARY") for binding in given)
    ):
        raise configuration.UserError(
            "no vocabulary came with these weights. Name their SentencePiece model "
            "(of T5's own: sentencepiece.model or spiece.model) with --vocabulary=FILE."
        )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "imported.gin")
        with open(path, "w") as file:
            file.write(run.run_gin(source, options.vocabulary))
        configuration.parse_gin(
            [path, *options.gin_file],
            given,
            options.gin_search_paths,
            modules=options.module_import,
        )
    model = build_model(configuration.get_value("train.model"), "float32")
    vocabularies = {}
    if of_text:
        task = configuration.get_value("text_to_text.task")
        vocabulary = configuration.get_value("text_to_text.vocabulary")
        vocabularies = describe_vocabularies(get_task(task, vocabulary))
        run.check_vocabulary_fits(vocabularies, model.vocab_size)
    taken = take(model, source)
    run.write_run(
        options.model_dir, model, configuration.configuration_str(), vocabularies
    )
    print(f"{source.format} from {options.source}:")
    print(name_table(taken))
    for name, reason in source.skipped.items():
        if name in source.shapes:
            print(f"  left out: {name}, {reason}")
    for line in describe_left_out(source.generation.left_out):
        print(line)
    print(
        f"{len(taken)} variables, {model.count_params():,} parameters, are in "
        f"{options.model_dir}"
    )


def _add_arguments(parser):
    parser.add_argument(
        "--from",
        required=True,
        dest="source",
        metavar="PATH",
        help="folder or file of Hugging Face's T5, Mesh TensorFlow's, T5X's, or of "
        "timm's gMLP or MLP-Mixer",
    )
    parser.add_argument(
        "--vocabulary",
        metavar="FILE",
        help="SentencePiece model of the weights, where none is beside them",
    )


if __name__ == "__main__":
    configuration.run_binary(main)
