"""Counters and times of the server, for Prometheus."""

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counters of one server, in a registry of their own.

    Args:
        models: function that returns the `Served` models that are ready.
    """

    def __init__(self, models):
        self._models = models
        self.registry = prometheus.CollectorRegistry()
        given = {"namespace": "remixer_tf", "registry": self.registry}
        self.requests = prometheus.Counter(
            "requests", "Requests by route and HTTP status", ["route", "code"], **given
        )
        self.seconds = prometheus.Histogram(
            "request_seconds",
            "Time of a request until its answer is sent",
            ["route"],
            buckets=_SECONDS,
            **given,
        )
        self.rows = prometheus.Counter(
            "rows", "Texts answered", ["model", "signature"], **given
        )
        self.tokens = prometheus.Counter(
            "tokens", "Tokens read and written", ["model", "direction"], **given
        )
        self.batch_rows = prometheus.Histogram(
            "batch_rows", "Texts computed together", ["model"], buckets=_ROWS, **given
        )
        self.batch_seconds = prometheus.Histogram(
            "batch_seconds", "Time of a batch", ["model"], buckets=_SECONDS, **given
        )
        self.failed = prometheus.Counter(
            "failed_batches", "Batches computed again in halves", ["model"], **given
        )
        self.registry.register(self)

    def observer(self, model):
        """Returns the function that a model's `Batcher` calls."""
        rows = self.batch_rows.labels(model)
        seconds = self.batch_seconds.labels(model)
        failed = self.failed.labels(model)

        def observe(number, time, error):
            rows.observe(number)
            seconds.observe(time)
            failed.inc(error is not None)

        return observe

    def count_answers(self, served, name, answers):
        """Counts answers, dictionaries, and their tokens."""
        self.rows.labels(served.name, name).inc(len(answers))
        read = sum(x.get("input_tokens", 0) for x in answers)
        written = sum(len(x["tokens"]) for x in answers if "input_tokens" in x)
        if read:
            self.tokens.labels(served.name, "read").inc(read)
        if written:
            self.tokens.labels(served.name, "written").inc(written)

    def collect(self):
        """Yields what is measured on request; Prometheus' registry calls it."""
        queue = GaugeMetricFamily(
            "remixer_tf_queue_rows", "Texts that wait", labels=["model"]
        )
        compiled = CounterMetricFamily(
            "remixer_tf_compilations_after_warm_up",
            "Shapes and searches compiled after start-up",
            labels=["model"],
        )
        versions = GaugeMetricFamily(
            "remixer_tf_model", "Models that answer", labels=["model", "version"]
        )
        compiling = GaugeMetricFamily(
            "remixer_tf_compiling", "1 while XLA makes a model faster", labels=["model"]
        )
        for served in self._models():
            compiling.add_metric([served.name], served.is_compiling)
            queue.add_metric([served.name], served.waiting())
            compiled.add_metric([served.name], served.compilations)
            versions.add_metric([served.name, served.version], 1)
        return [queue, compiled, compiling, versions]

    def text(self):
        """Returns all, bytes in Prometheus' format."""
        return prometheus.generate_latest(self.registry)
