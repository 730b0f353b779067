"""Reports results on benchmarks: python -m remixer_tf.report --model_dir=DIR"""

import argparse

from remixer_tf import configuration


def main(arguments):
    """Parses the command line, prints tables and writes files."""
    parser = argparse.ArgumentParser(
        description="Prints the papers' tables (SuperGLUE, GLUE, entailment) of what "
        "eval has computed, and writes the files that GLUE's and SuperGLUE's sites "
        "take, from the predictions on test sets, into the folder submission/STEP of "
        "the run.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model_dir", required=True, metavar="DIR", help="folder of the run"
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="default: the last one with results"
    )
    options = parser.parse_args(arguments)
    from remixer_tf.analysis.benchmark_report import write_report

    write_report(options.model_dir, options.step)


if __name__ == "__main__":
    configuration.run_binary(main)
