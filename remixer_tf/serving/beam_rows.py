"""Answers the rows of tables with Apache Beam."""

import apache_beam as beam
from apache_beam.utils.shared import Shared

from remixer_tf.pipelines import pipeline


def answer_parts(job, load, arguments):
    """Writes the parts of a `TableJob` that are missing, each on a worker.

    Args:
        job: the `TableJob`.
        load: a function without arguments that can be pickled. It loads the model, once
            in a process, and returns the argument `answer` of `TableJob.write`.
        arguments: list of str, Beam's options.
    """
    stretches = job.stretches()
    if stretches:
        with pipeline(arguments, f"writing to {job.output}") as started:
            rows = started | beam.Create(stretches) | beam.Reshuffle()
            rows | f"write {job.kind}" >> beam.ParDo(_Write(job, load))


class _Write(beam.DoFn):
    def __init__(self, job, load):
        self._job, self._load, self._shared = job, load, Shared()

    def setup(self):
        self._answer = self._shared.acquire(self._load)

    def process(self, parts):
        self._job.write(parts, self._answer)
