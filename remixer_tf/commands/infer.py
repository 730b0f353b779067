"""Answers lines of text.

Each line of --output answers the line of --input with the same number. On a terminal,
the command answers line by line.
"""

from remixer_tf import configuration


def add_arguments(parser):
    configuration.add_run(parser)
    help = "text file, one question a line; standard input if not given, or '-'"
    parser.add_argument("--input", default="-", metavar="FILE", help=help)
    configuration.add_output(parser, "file, written when all is answered")
    help = "after each answer, a tab and its log-probability"
    configuration.add_flag(parser, "--scores", help)
    help = "lines answered together; it changes the speed, not the answers"
    configuration.add_number(parser, "--batch_size", help, default=64)
    configuration.add_on_long(parser)


def run(options):
    configuration.read_run(options, devices="asked")
    from remixer_tf.serving.lines import answer_lines, open_input, open_output, prompt

    with open_input(options.input) as lines, open_output(options.output) as output:
        model, _ = configuration.call_on_run("text_to_text", options)
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
