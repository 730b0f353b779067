"""Puts runs side by side.

The tables have parameters, FLOPs, steps, time, the last and the best of each metric,
and the bindings of gin that differ.
"""

import io

from remixer_tf import configuration


def add_arguments(parser):
    parser.usage = "%(prog)s [options] RUN ..."
    parser.add_argument("runs", nargs="+", metavar="RUN", help="--model_dir of a run")
    parser.add_argument(
        "--format", default="text", help="text, markdown or csv; default text"
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="file to write; standard output if not given, or '-'",
    )


def run(options):
    configuration.load_tensorflow()
    from remixer_tf.analysis.comparison import Run, write_comparison
    from remixer_tf.analysis.printed_tables import check_format
    from remixer_tf.serving.lines import open_output

    check_format(options.format)
    with open_output(options.output) as output:
        runs = [Run(folder, configuration.read_bindings) for folder in options.runs]
        text = io.StringIO()
        write_comparison(runs, options.format, text)
        output.write(text.getvalue().encode())
