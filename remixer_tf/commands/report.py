"""Writes the files that a benchmark's site takes.

The command prints eval's results as the papers' tables (SuperGLUE, GLUE, entailment).
From the predictions on test sets it writes the files that GLUE's and SuperGLUE's sites
take, into the folder submission/STEP of the run. It reads results only, and has no
options for gin.
"""

from remixer_tf import configuration


def add_arguments(parser):
    parser.add_argument(
        "--model_dir", required=True, metavar="DIR", help="folder of the run"
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="default: the last one with results"
    )


def run(options):
    configuration.load_tensorflow()
    from remixer_tf.analysis.benchmark_report import write_report

    write_report(options.model_dir, options.step)
