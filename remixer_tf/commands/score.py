"""Computes the log-likelihood of targets, given inputs.

A line of --input has inputs, a tab and targets. A line of --output has, with tabs
between, the log-likelihood, the number of tokens, and 1 if greedy decoding would write
the targets, else 0. With --beam, --input is a table, a pattern of several, or of .txt
files, and --output a folder, see `infer`.
"""

import functools

from remixer_tf import configuration
from remixer_tf.commands import (
    add_number,
    add_on_long,
    add_output,
    add_rows,
    answer_rows,
    check_rows,
)
from remixer_tf.errors import UserError


def add_arguments(parser):
    configuration.add_run(parser)
    help = "text file; standard input if not given, or '-'"
    parser.add_argument("--input", metavar="FILE", help=help)
    help = "score this split of the run's task (or of --gin.Run.task) instead"
    parser.add_argument("--split", metavar="NAME", help=help)
    add_number(
        parser,
        "--stride",
        "read --input as one text, and score a language model on N tokens at a time, "
        "given those before: one line with log-likelihood, tokens, perplexity and bits "
        "per byte",
    )
    add_output(parser, "file, written when all is scored")
    help = "lines scored together; it changes the speed, not the scores"
    add_number(parser, "--batch_size", help, default=64)
    add_on_long(parser)
    add_rows(parser, targets=True)


def run(options):
    check_rows(options)
    if options.beam and (options.split or options.stride):
        raise UserError(
            "--beam scores the rows of --input. Leave out --split, --stride."
        )
    if options.split and (options.input or options.stride):
        raise UserError("--split scores a task. Leave out --input and --stride.")
    if options.stride and options.on_long == "raise":
        raise UserError(
            "--stride reads a text of any length in parts: nothing is cut. Leave out "
            "--on_long."
        )
    settings = configuration.read_run(options, devices="asked")
    from remixer_tf.run import Run
    from remixer_tf.serving import lines
    from remixer_tf.serving.text_scorer import text_scorer

    if options.beam:
        from remixer_tf.serving.table_rows import SCORES

        load = functools.partial(_load_for_rows, options)
        answer_rows(options, settings, "scores", SCORES, load)
        return
    with (
        lines.open_input(options.input or "-") as file,
        lines.open_output(options.output) as output,
    ):
        run, folder = settings.call(Run), options.model_dir
        scorer, _ = settings.call(text_scorer, run, folder, step=options.step)
        if options.stride:
            text = file.read()
            pairs = scorer.windows(text, options.stride)
            scores = scorer.keeping_ends().score(pairs, options.batch_size)
            lines.write_perplexity(scores, len(text), output)
            return
        if options.split:
            pairs = scorer.read(options.split)
        else:
            pairs = lines.read_pairs(scorer, file)
        scores = scorer.score(pairs, options.batch_size)
        lines.write_scores(scores, output, options.on_long == "raise")


def _load_for_rows(options):
    """Loads the model on a worker, which is another process."""
    from remixer_tf.run import Run
    from remixer_tf.serving.table_rows import scores_of
    from remixer_tf.serving.text_scorer import text_scorer

    settings = configuration.read_run(options, devices="asked")
    run, folder = settings.call(Run), options.model_dir
    scorer, _ = settings.call(text_scorer, run, folder, step=options.step)
    return scores_of(scorer, options.batch_size, options.on_long == "raise")
