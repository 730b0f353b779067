"""Makes a run of published weights.

--model_dir becomes a run that starts from them: a checkpoint of step 0, and the
configuration that infer, eval, train and export read. `remixer_tf.weights.formats`
lists the formats.
"""

import os
import tempfile

from remixer_tf import configuration
from remixer_tf.configuration.reading import put_into_gin
from remixer_tf.configuration.trust import check_run_configuration
from remixer_tf.errors import printable


def add_arguments(parser):
    configuration.add_common(parser, run="new")
    parser.add_argument(
        "--from",
        required=True,
        dest="source",
        metavar="PATH",
        help="folder or file of Hugging Face's T5, FLAN-T5, ByT5, mT5 or umT5, or the "
        "encoder of one; Hugging Face's BERT; Mesh TensorFlow's or T5X's T5; timm's "
        "gMLP, MLP-Mixer, ResMLP or ViT; what export --format=safetensors wrote",
    )
    help = "SentencePiece model of the weights, where none is next to them"
    parser.add_argument("--vocabulary", metavar="FILE", help=help)


def run(options):
    configuration.load_tensorflow()
    from remixer_tf.checkpoints.initial import name_table
    from remixer_tf.data.vocabularies import describe_vocabularies
    from remixer_tf.models.build import build_model
    from remixer_tf.run import Run
    from remixer_tf.weights import formats
    from remixer_tf.weights import run as imported_run
    from remixer_tf.weights.source import check_model, take

    imported_run.check_new(options.model_dir)
    source = formats.read_source(options.source)
    given = options.gin_bindings
    imported_run.check_vocabulary_named(source, options.vocabulary, given)
    if source.run is None:  # an exported run, perhaps a stranger's
        (exported,) = source.architecture
        check_run_configuration(exported, options.module_import)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "imported.gin")
        with open(path, "w") as file:
            file.write(imported_run.run_gin(source, options.vocabulary))
        settings = configuration.read(
            [path, *options.gin_file],
            given,
            options.gin_search_paths,
            modules=options.module_import,
        )
    if source.run is None:
        settings.set_paths([os.path.dirname(exported)])
    put_into_gin(settings)
    run = settings.call(Run)
    check_model(run.model, source)
    model = build_model(run.model, "float32")
    vocabularies = {}
    if run.task is not None:
        vocabularies = describe_vocabularies(run.get_task())
        imported_run.check_vocabulary_fits(vocabularies, model.vocab_size)
    taken = take(model, source)
    imported_run.write_run(options.model_dir, model, settings, vocabularies)
    print(f"{source.format} from {options.source}:")
    print(name_table(taken))
    for name, reason in source.skipped.items():
        if name in source.shapes:
            print(printable(f"  left out: {name}, {reason}"))
    for line in source.remarks():
        print(printable(line))
    print(
        f"{len(taken)} variables, {model.count_params():,} parameters, are in "
        f"{options.model_dir}"
    )
