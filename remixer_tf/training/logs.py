"""The metrics of a run: summed up, and logged to TensorBoard and metrics.jsonl."""

import resource
import time

import numpy as np
import tensorflow as tf

from remixer_tf.objectives.batches import targets_and_weights, throughput_unit
from remixer_tf.objectives.summaries import summarize_steps
from remixer_tf.training.overview import count_parameters, parameter_table
from remixer_tf.training.run_files import (
    append_metrics,
    close_summaries,
    summary_writer,
)

_MUCH_DROPPED = 0.1


class Totals:
    """Adds up metrics, FLOPs and time over a log period, and over the run.

    `start_time` is `time.perf_counter` when this process began the run.
    """

    def __init__(self, session, skipped, start_time):
        self._unit = throughput_unit(session.batches.first)  # "tokens" or "images"
        self._session, self._skipped = session, skipped
        self._start_time = start_time
        self._steps = self._flops = self._rest = self._read = 0  # in this process
        self._sums = None  # since the last log line
        self._values = {}  # of the last log line
        self._uncounted = set()  # see `Cost`

    def after_call(self, step, batch, metrics):
        """Adds a call's metrics, FLOPs and time."""
        batches, speed = self._session.batches, self._session.speed
        steps = self._session.schedule.steps_per_call
        cost = self._session.engine.cost(batch)
        flops = cost.flops * steps
        self._uncounted.update(cost.uncounted)
        self._steps += steps
        self._flops += flops
        self._rest += cost.rest * steps
        if batches.new_shapes:  # Compiling does not count.
            seconds = time.perf_counter() - batches.start
            speed.skip(seconds, float(metrics["tokens"]))
        else:
            speed.count(steps=steps, flops=flops, waited=batches.waited)
        if self._sums:
            metrics = {key: self._sums[key] + value for key, value in metrics.items()}
        self._sums = metrics

    def end_period(self):
        """Ends a period; returns the values of `summarize_steps` and `Speed.lap`."""
        read = float(self._sums["tokens"])
        self._read += read
        self._session.speed.count(read=read)
        rates = self._session.speed.lap(self._unit)
        self._values = summarize_steps(self._sums, self._unit) | rates
        self._values["goodput"] = self._goodput()
        self._sums = None
        return self._values

    def _goodput(self):
        """The share of time spent in steps, since this process called `train`."""
        seconds = time.perf_counter() - self._start_time
        return max(0.0, self._session.speed.seconds_in_steps / seconds)

    def summary(self, step):
        """Returns the contents of train_summary.json at this step, a dictionary.

        Seconds, FLOPs, tokens and skipped steps include the processes before this one.
        Rates and loss are this process's.
        """
        engine, earlier = self._session.engine, self._session.checkpoints.summary
        values, read = self._values, self._read
        if self._sums:
            values = summarize_steps(self._sums, self._unit)
            read += float(self._sums["tokens"])
        here = {
            "counted_steps": self._steps,  # Fewer if a process did not count them.
            self._unit: read,
            "flops": self._flops * engine.host.count,
            "rest_flops": self._rest * engine.host.count,
            "skipped_steps": self._skipped.count,
            "seconds": time.perf_counter() - self._start_time,
        }
        if earlier and "rest_flops" not in earlier:
            del here["rest_flops"]  # An earlier version did not count them.
        sums = {name: value + earlier.get(name, 0) for name, value in here.items()}
        accuracy = f"{self._unit[:-1]}_accuracy"
        per = {"step": "counted_steps", self._unit[:-1]: self._unit}
        return {
            "parameters": count_parameters(engine.model),
            "steps": step,
            **sums,
            **{
                f"{flops}_per_{one}": sums[flops] / max(sums[all_of_them], 1)
                for flops in ("flops", "rest_flops")
                if flops in sums
                for one, all_of_them in per.items()
            },
            **{
                name: values[name]
                for name in ("objective", "loss", accuracy)
                if name in values
            },
            **({"not_counted": sorted(self._uncounted)} if self._uncounted else {}),
            **self._session.speed.mean(self._unit),
            "goodput": self._goodput(),
        }


class Logging:
    """Writes the values of each log period to tensorboard/train and metrics.jsonl.

    Use it as a context manager.
    """

    def __init__(self, session, totals, skipped):
        rows = targets_and_weights(session.batches.first)[0].shape[1]
        host = session.engine.host
        self._session, self._totals, self._skipped = session, totals, skipped
        self._batch_size = rows * host.shard_info.num_shards
        self._writes = host.index == 0
        self._writer = tf.summary.create_noop_writer()
        if self._writes:
            self._writer = summary_writer(session.model_dir)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        close_summaries(self._session.model_dir)

    def start(self, configuration, hyperparameters):
        """Writes the parameters, the operative gin, and a dict of hyperparameters."""
        from tensorboard.plugins.hparams import api as hparams

        with self._writer.as_default(self._session.step):
            if hyperparameters:
                hparams.hparams(hyperparameters)
            indented = "".join(f"    {line}\n" for line in configuration.splitlines())
            tf.summary.text("configuration", indented)
            tf.summary.text("parameters", parameter_table(self._session.engine.model))
        self._writer.flush()

    def after_call(self, step, batch, metrics):
        """At the end of a log period, writes its values."""
        session = self._session
        if not session.schedule.due(step, session.schedule.log_period):
            return
        self._skipped.flush()
        values = self._with_state(step, self._totals.end_period())
        session.progress.report(step, values)
        if problem := expert_warning(values):
            session.progress.message(problem)
        if self._writes:
            append_metrics(session.model_dir, step, values)
        with self._writer.as_default(step):
            for name, value in values.items():
                write = tf.summary.histogram if np.ndim(value) else tf.summary.scalar
                write(name, value)

    def _with_state(self, step, values):
        """Adds values of the run, such as epochs and memory, to those of a period."""
        engine, values = self._session.engine, dict(values)
        examples = step * self._batch_size
        if "flops_per_second" in values:
            rate = values.pop("flops_per_second")
            values["share_of_matmul_rate"] = rate / engine.matmul_rate()
            if peak := engine.peak_rate(self._session.launch.watching.peak_flops):
                values["model_flops_utilization"] = rate / peak
        values["parameter_norm"] = engine.parameter_norm()
        if (scale := engine.loss_scale) is not None:
            values["loss_scale"] = float(engine.to_numpy(scale.scale))
        values["examples"] = examples
        if per_epoch := self._session.schedule.examples_per_epoch:
            values["epochs"] = examples / per_epoch
        values["skipped_steps"] = self._skipped.count
        # Linux reports kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        values["host_memory_gigabytes"] = peak / 1e9
        values |= {f"{k}_gigabytes": used for k, used in engine.memory().items()}
        return values | expert_imbalances(values)


def expert_imbalances(values):
    """Returns each mixture's largest load over its mean load; NaN without any load."""
    return {
        f"{name}_largest_over_mean": float(np.max(load) / (np.mean(load) or np.nan))
        for name, load in values.items()
        if _is(name, "load")
    }


def expert_warning(values):
    """Names mixtures with unused experts or many dropped choices; None for none."""
    problems = {}  # layer -> what is wrong
    for name, value in values.items():
        layer = name.removeprefix("statistics/").rpartition("/")[0]
        if _is(name, "load") and len(unused := np.flatnonzero(value == 0)):
            shown = ", ".join(map(str, unused[:8])) + ", ..." * (len(unused) > 8)
            what = f"{len(unused)} of {len(value)} experts unused ({shown})"
            problems.setdefault(layer, []).append(what)
        if _is(name, "dropped") and value > _MUCH_DROPPED:
            what = f"{100 * value:.0f}% of the choices dropped"
            problems.setdefault(layer, []).append(what)
    if not problems:
        return None
    layers = (f"{layer}: {', '.join(what)}" for layer, what in problems.items())
    return f"warning: since the last log line, {'; '.join(layers)}"


def _is(name, statistic):
    return name.startswith("statistics/") and name.endswith(f"/{statistic}")
