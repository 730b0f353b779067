"""Tokenizes a task once, for many runs.

The tokenized examples of a run's task, or of every task of its mixture, are written to
disk in seqio's format. Trained with --gin.CACHE_DIR=DIR the run reads them in place of
the task's own source. --gin.TASK and --gin.VOCABULARY name the data where neither
--gin_file nor --model_dir does.
"""

from remixer_tf import configuration
from remixer_tf.errors import UserError


def add_arguments(parser):
    configuration.add_common(parser, run="optional")
    parser.add_argument(
        "--output_dir",
        required=True,
        metavar="DIR",
        help="folder for the folders of the tasks",
    )
    configuration.add_number(
        parser,
        "--num_shards",
        "files of each split, at least as many as hosts that read them",
        default=16,
    )
    parser.add_argument(
        "--splits",
        metavar="NAME,...",
        help="what to cache; default: all splits of the task",
    )


def run(options):
    configuration.read_configuration(options, ["runs/train.gin"], complete=False)
    if configuration.get_value("get_task.cache_dir") is not None:
        raise UserError(
            "CACHE_DIR is what training reads. This writes to --output_dir, and reads "
            "the task's own source: leave CACHE_DIR out."
        )
    from remixer_tf.data.caching import write_caches
    from remixer_tf.data.pipeline import get_task

    written = write_caches(
        get_task(configuration.get_value("train_dataset.task")),
        options.output_dir,
        num_shards=options.num_shards,
        splits=options.splits.split(",") if options.splits else None,
    )
    for folder, split, stats in written:
        numbers = ", ".join(f"{number:,} {name}" for name, number in stats.items())
        print(f"{folder} {split}: {numbers.replace('_', ' ')}", flush=True)
