"""What will run, on one screen before the first step."""

import math

from remixer_tf.objectives.batches import (
    targets_and_weights,
    throughput_tensors,
    throughput_unit,
)

# What a model reads, by what the screen calls it.
_READ = {
    "images": "images",
    "inputs": "encoder_input_tokens",
    "targets": "decoder_target_tokens",
}


class Overview:
    """Counts what a run is made of.

    Args:
        engine: the `Engine` of the run, built.
        dtype_policy: str.

    Attributes:
        parameters: int, elements of all trainable variables.
        matmul_rate: float, see `Engine.matmul_rate`.
        peak_rate: float or None, see `Engine.peak_rate`.
    """

    def __init__(self, engine, dtype_policy):
        self._engine = engine
        self._policy = dtype_policy
        self._trainable = engine.model.trainable_variables
        self.parameters = count_parameters(engine.model)
        self.matmul_rate = engine.matmul_rate()
        self.peak_rate = engine.peak_rate()

    def text(self, superbatch, over_length=None, caches=None):
        """Returns the screen.

        Args:
            superbatch: the first one, [steps, batch, length].
            over_length: the `OverLength` of the data, or None.
            caches: str, which data are read from caches, or None.
        """
        steps, batch = targets_and_weights(superbatch)[0].shape[:2]
        batch *= self._engine.host.shard_info.num_shards
        lengths = {
            label: superbatch[key].shape[2:].as_list()
            for label, key in _READ.items()
            if key in superbatch
        }
        tokens = sum(math.prod(x.shape[2:]) for x in throughput_tensors(superbatch))
        cost = self._engine.cost(superbatch)
        host, replicas = self._engine.host, self._engine.num_replicas
        limit = self._engine.memory_limit()
        available = f", of {limit / 1e9:.1f} GB on this machine" if limit else ""
        rows = {
            "model": f"{self._engine.model.name}, {self.parameters:,} parameters",
            "precision": self._policy,
            "devices": f"{replicas} replica(s) on {host.count} host(s), here "
            f"{self._engine.devices()}",
            "batch": f"{batch} in all, {batch // replicas} per replica, "
            f"{steps} step(s) per call",
            "lengths": " / ".join(
                f"{label} {'x'.join(map(str, shape))}"
                for label, shape in lengths.items()
            )
            + f" (first batch), {batch * tokens:,} "
            f"{throughput_unit(superbatch)} per step, padding "
            "included",
            "work": f"{cost.flops / 1e9:,.1f} GFLOP of matrix products per step; this "
            f"machine does {self.matmul_rate / 1e9:,.0f} GFLOP/s",
            "memory": f"about {cost.bytes / 1e9:.2f} GB per replica{available}",
        }
        if caches is not None:
            rows["cached"] = caches
        if over_length is not None:
            rows[over_length.handling] = str(over_length)
        return "\n".join(f"{name:>10}  {text}" for name, text in rows.items())

    def parameter_table(self):
        """Returns the variables as a Markdown table."""
        rows = ["| variable | shape | parameters |", "|---|---|---:|"]
        rows += [
            f"| {v.path} | {list(v.shape)} | {math.prod(v.shape):,} |"
            for v in self._trainable
        ]
        return "\n".join([*rows, f"| **all** | | **{self.parameters:,}** |"])


def count_parameters(model):
    """Returns the number of elements of all trainable variables of a `keras.Model`."""
    return sum(math.prod(v.shape) for v in model.trainable_variables)
