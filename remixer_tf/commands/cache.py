"""Tokenizes a task once, for many runs.

The command writes the tokenized examples of a run's task, or of each task of its
mixture, in seqio's format. Train with --gin.CACHE_DIR=DIR to read them in place of the
task's source. Name the data with --gin_file, --model_dir, or --gin.TASK and
--gin.VOCABULARY.
"""

import functools

from remixer_tf import configuration, console
from remixer_tf.commands import add_beam, add_number
from remixer_tf.errors import UserError


def add_arguments(parser):
    configuration.add_common(parser, run="optional")
    help = "folder for the folders of the tasks"
    parser.add_argument("--output_dir", required=True, metavar="DIR", help=help)
    help = "files of each split, at least as many as hosts that read them"
    add_number(parser, "--num_shards", help, default=16)
    help = "what to cache; default: all splits of the task"
    parser.add_argument("--splits", metavar="NAME,...", help=help)
    add_beam(parser, "read and tokenize the files of the source on several workers,")


def run(options):
    settings = configuration.read_configuration(
        options, ["runs/train.gin"], complete=False
    )
    from remixer_tf.configured import data_of_run
    from remixer_tf.run import Run

    if settings.value(Run, "cache_dir") is not None:
        raise UserError(
            "CACHE_DIR is what training reads. This command reads the task's source, "
            "and writes to --output_dir: add --gin.CACHE_DIR=None."
        )
    from remixer_tf.data.caching import write_caches

    task, writer = data_of_run(settings)[0], None
    if options.beam:
        from remixer_tf.data.beam_cache import BeamWriter

        text = settings.text(), tuple(settings.starts)
        writer = BeamWriter(options.beam_arguments, functools.partial(_prepare, *text))
    written = write_caches(
        task,
        options.output_dir,
        num_shards=options.num_shards,
        splits=options.splits.split(",") if options.splits else None,
        write_records=writer,
    )
    for folder, split, stats in written:
        numbers = ", ".join(f"{number:,} {name}" for name, number in stats.items())
        console.say(f"{folder} {split}: {numbers.replace('_', ' ')}", "result")


@functools.cache
def _prepare(text, starts):
    """Registers the task of a configuration on a worker, which is another process."""
    from remixer_tf.configured import data_of_run
    from remixer_tf.data.beam_cache import register

    settings = configuration.read_again(text, starts)
    configuration.put_into_gin(settings)
    register(data_of_run(settings)[0])
