"""Puts runs side by side: python -m remixer_tf.compare RUN RUN ..."""

import argparse
import sys

from remixer_tf import configuration


def main(arguments):
    """Parses the command line and writes the tables."""
    parser = argparse.ArgumentParser(
        description="Puts runs side by side: parameters, FLOPs, steps, time, the last "
        "and the best of each metric, and the bindings of gin that differ.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="--model_dir of a run")
    parser.add_argument(
        "--format", default="text", help="text, markdown or csv; default text"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="file to write; default standard output"
    )
    options = parser.parse_args(arguments)
    from remixer_tf.analysis.comparison import Run, write_comparison
    from remixer_tf.analysis.tables import check_format

    check_format(options.format)
    runs = [Run(folder, configuration.read_bindings) for folder in options.runs]
    if not options.output:
        write_comparison(runs, options.format, sys.stdout)
        return
    with open(options.output, "w", encoding="utf-8") as output:
        write_comparison(runs, options.format, output)


if __name__ == "__main__":
    configuration.run_binary(main)
