"""What will run, on one screen before the first step."""

import math
import os

import tensorflow as tf

from remixer_tf.objectives.batches import (
    targets_and_weights,
    throughput_tensors,
    throughput_unit,
)
from remixer_tf.training.flops import (
    matmul_flops,
    matmul_rate,
    peak_bytes,
    variable_bytes,
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
      model: a built `keras.Model`.
      optimizer: a built `keras.optimizers.Optimizer`.
      train_step: the `TrainStep` of both.
      num_replicas: int, on all hosts.
      host: the `Host` that this process is.
      dtype_policy: str.

    Attributes:
      parameters: int, elements of all trainable variables.
      matmul_rate: FLOP/s of square products in the compute dtype on this host's
        devices, measured here (half a second).
    """

    def __init__(
        self,
        model,
        optimizer,
        train_step,
        num_replicas,
        host,
        dtype_policy,
    ):
        self._model = model
        self._train_step = train_step
        self._num_replicas = num_replicas
        self._host = host
        xla = "on" if train_step.jit_compile else "off"
        self._policy = f"{dtype_policy}, XLA {xla}"
        self._variable_bytes = variable_bytes([*model.variables, *optimizer.variables])
        self.parameters = sum(math.prod(v.shape) for v in model.trainable_variables)
        self._local_replicas = num_replicas // host.count
        gpus = len(tf.config.list_physical_devices("GPU"))
        compute = "bfloat16" if "bfloat16" in dtype_policy else "float32"
        rate = matmul_rate(seconds=0.5, dtype=compute)
        self.matmul_rate = rate * min(self._local_replicas, max(gpus, 1))
        self._flops = {}

    def flops(self, superbatch):
        """Returns this host's matmul FLOPs of one step on data of these shapes."""
        shapes = tuple(tuple(value.shape) for value in superbatch.values())
        if shapes not in self._flops:
            function = self._train_step.get_concrete_function(superbatch)
            micro_batches = self._train_step.micro_batches  # A loop counts once.
            self._flops[shapes] = matmul_flops(function) * micro_batches
        return self._flops[shapes]

    def needed_bytes(self, superbatch):
        """Returns an estimate of a replica's memory in a step on these shapes.

        Variables and slots, gradients, and the largest sum of the tensors alive at
        once. XLA and allocators may need less or more.
        """
        function = self._train_step.get_concrete_function(superbatch)
        parts = self._local_replicas
        return self._variable_bytes + 4 * self.parameters + peak_bytes(function) / parts

    def text(self, superbatch, over_length=None):
        """Returns the screen.

        Args:
          superbatch: the first one, [steps, batch, length].
          over_length: the `OverLength` of the data, whose over-long examples are
            trimmed, or None.
        """
        steps, batch = targets_and_weights(superbatch)[0].shape[:2]
        batch *= self._host.count
        lengths = {
            label: superbatch[key].shape[2:].as_list()
            for label, key in _READ.items()
            if key in superbatch
        }
        tokens = sum(math.prod(x.shape[2:]) for x in throughput_tensors(superbatch))
        devices = tf.config.list_logical_devices("GPU") or [
            d
            for d in tf.config.list_logical_devices()
            if d.device_type in ("CPU", "TPU")
        ]
        needed = self.needed_bytes(superbatch)
        flops = self.flops(superbatch)
        rows = {
            "model": f"{self._model.name}, {self.parameters:,} parameters",
            "precision": self._policy,
            "devices": f"{self._num_replicas} replica(s) on {self._host.count} "
            f"host(s), {len(devices)} {devices[0].device_type}(s) here",
            "batch": f"{batch} in all, {batch // self._num_replicas} "
            f"per replica, {steps} step(s) per call",
            "lengths": " / ".join(
                f"{label} {'x'.join(map(str, shape))}"
                for label, shape in lengths.items()
            )
            + f" (first batch), {batch * tokens:,} "
            f"{throughput_unit(superbatch)} per step, padding "
            "included",
            "work": f"{flops / 1e9:,.1f} GFLOP of matrix products per step; this "
            f"machine does {self.matmul_rate / 1e9:,.0f} GFLOP/s",
            "memory": f"about {needed / 1e9:.2f} GB per replica{_available()}",
        }
        if over_length is not None:
            rows["trimmed"] = str(over_length)
        return "\n".join(f"{name:>10}  {text}" for name, text in rows.items())

    def parameter_table(self):
        """Returns the variables as a Markdown table."""
        rows = ["| variable | shape | parameters |", "|---|---|---:|"]
        rows += [
            f"| {v.path} | {list(v.shape)} | {math.prod(v.shape):,} |"
            for v in self._model.trainable_variables
        ]
        return "\n".join([*rows, f"| **all** | | **{self.parameters:,}** |"])


def _available():
    """Returns ', of N GB' for the memory of the machine or its first GPU, or ''."""
    if tf.config.list_physical_devices("GPU"):
        return ""  # TensorFlow does not tell what a GPU has.
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return ""
    return f", of {total / 1e9:.1f} GB on this machine"
