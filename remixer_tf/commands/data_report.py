"""Shows the data of a run or a task.

The report has the splits, examples as text and as ids, lengths, the shares of trimmed,
unknown and padding tokens, and lengths that suffice. Name the data with --gin_file,
--model_dir, or --gin.TASK, --gin.VOCABULARY and --gin.FEATURE_LENGTHS.
"""

import sys

from remixer_tf import configuration
from remixer_tf.commands import add_number
from remixer_tf.errors import UserError


def add_arguments(parser):
    configuration.add_common(parser, run="optional")
    parser.add_argument(
        "--split", metavar="NAME", help="what to read; default: as in training"
    )
    add_number(
        parser,
        "--max_examples",
        "examples of a task to read at most: the numbers of a larger split are those "
        "of a sample, and the report says so",
        default=10_000,
    )
    add_number(parser, "--examples", "examples to show", 3, least=0)


def run(options):
    if options.gin_file and options.model_dir:
        raise UserError("give --gin_file or --model_dir, not both.")
    settings = configuration.read_configuration(
        options, ["runs/train.gin"], complete=False
    )
    from remixer_tf.data.images import image_dataset
    from remixer_tf.data.pipeline import Batching, train_dataset
    from remixer_tf.training.loop import train

    settings.set_paths(settings.starts, options.model_dir)
    dataset = settings.value(train, "dataset")
    given = {"max_examples": options.max_examples}
    if getattr(dataset, "__name__", None) == "image_dataset":
        from remixer_tf.analysis.data_report import write_images

        split = options.split or settings.value(image_dataset, "split", "train")
        source = settings.value(image_dataset, "source")
        write_images(source, sys.stdout, split=split, **given)
        return
    if getattr(dataset, "__name__", None) != "train_dataset":
        raise UserError(
            "this command shows the data of train_dataset and image_dataset. The "
            f"configuration has train.dataset = {dataset}."
        )
    from remixer_tf.analysis.data_report import write_task
    from remixer_tf.configured import data_of_run

    for part, name in (
        (Batching, "feature_converter"),
        (Batching, "length_buckets"),
    ):
        value = settings.value(part, name)
        if value is not None:
            given[name] = value
    task, lengths = data_of_run(settings)
    split = options.split or settings.value(train_dataset, "split", "train")
    write_task(
        task,
        sys.stdout,
        feature_lengths=lengths,
        split=split,
        shown_examples=options.examples,
        **given,
    )
