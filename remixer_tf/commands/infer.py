"""Answers lines of text.

Each line of --output answers the line of --input with the same number. On a terminal,
the command answers line by line. --model_dir is a run, or the folder of an export in
the format litert or onnx. With --beam, --input is a table, a pattern of several, or of
.txt files, and --output a folder. It gets one answer a row, with the row's other
columns, in shards of JSON lines, and a file of bad rows. The same command again goes on
where it was stopped.
"""

import functools

from remixer_tf import configuration
from remixer_tf.checkpoints.export_folder import is_export
from remixer_tf.commands import (
    add_number,
    add_on_long,
    add_output,
    add_rows,
    answer_rows,
    check_rows,
)
from remixer_tf.errors import UserError
from remixer_tf.exporting import answers_of_export


def add_arguments(parser):
    configuration.add_run(parser)
    help = "text file, one question a line; standard input if not given, or '-'"
    parser.add_argument("--input", default="-", metavar="FILE", help=help)
    add_output(parser, "file, written when all is answered")
    help = "after each answer, a tab and its log-probability"
    parser.add_argument("--scores", action="store_true", help=help)
    help = "lines answered together; it changes the speed, not the answers"
    add_number(parser, "--batch_size", help, default=64)
    add_on_long(parser)
    add_rows(parser)


def run(options):
    check_rows(options)
    of_export = is_export(options.model_dir)
    if of_export and (options.gin_file or options.gin_bindings or options.step):
        raise UserError(
            f"{options.model_dir} is an export, which holds one search. Leave --step, "
            "--gin_file and --gin out, or give the run as --model_dir."
        )
    settings = configuration.read_run(options, devices="asked")
    from remixer_tf.serving.lines import answer_lines, open_input, open_output, prompt

    if options.beam:
        load = functools.partial(_load_for_rows, options)
        answer_rows(
            options,
            settings,
            "answers",
            ["outputs"] + ["scores"] * options.scores,
            load,
        )
        return
    with open_input(options.input) as lines, open_output(options.output) as output:
        model = _load(settings, options)
        terminal = lines.isatty()
        if terminal:
            lines, options.batch_size = prompt(lines), 1
        try:
            answer_lines(
                model,
                lines,
                output,
                options.batch_size,
                options.scores,
                options.on_long == "raise",
            )
        except KeyboardInterrupt:  # Control-C leaves a prompt, as Control-D does
            if not terminal:
                raise


def _load(settings, options):
    """Returns the model, a `TextAnswers`."""
    from remixer_tf.run import Run
    from remixer_tf.serving.text_to_text import text_to_text

    run, folder = settings.call(Run), options.model_dir
    if is_export(folder):
        return answers_of_export(settings, run, folder)
    return settings.call(text_to_text, run, folder, step=options.step)[0]


def _load_for_rows(options):
    """Loads the model on a worker, which is another process."""
    from remixer_tf.serving.table_rows import answers_of

    model = _load(configuration.read_run(options, devices="asked"), options)
    on_long = options.on_long == "raise"
    return answers_of(model, options.batch_size, options.scores, on_long)
