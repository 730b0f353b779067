"""One screen about a run, shown before the first step."""

import math

from remixer_tf.models.adapters import is_frozen
from remixer_tf.objectives.batches import (
    targets_and_weights,
    throughput_tensors,
    throughput_unit,
)
from remixer_tf.tables import markdown

# The screen's names of what a model reads.
_READ = {
    "images": "images",
    "inputs": "encoder_input_tokens",
    "targets": "decoder_target_tokens",
}


def overview(engine, batches, cost, dtype_policy):
    """Returns the screen, a str.

    `cost` is the `Cost` of a step on the first of the `TimedBatches`. Their data may
    have `over_length`, an `OverLength`, and `caches`, a str that names the caches.
    """
    superbatch = batches.first
    steps, batch = targets_and_weights(superbatch)[0].shape[:2]
    batch *= engine.host.shard_info.num_shards
    lengths = " / ".join(
        f"{label} {'x'.join(map(str, superbatch[key].shape[2:]))}"
        for label, key in _READ.items()
        if key in superbatch
    )
    read = sum(math.prod(x.shape[2:]) for x in throughput_tensors(superbatch))
    replicas, limit = engine.num_replicas, engine.memory_limit()
    available = f", of {limit / 1e9:.1f} GB on this machine" if limit else ""
    rows = {
        "model": f"{engine.model.name}, {_parameters(engine.model)}",
        "precision": dtype_policy,
        "devices": f"{replicas} replica(s) on {engine.host.count} host(s), here "
        f"{engine.devices()}",
        "batch": f"{batch} in all, {batch // replicas} per replica, "
        f"{steps} step(s) per call",
        "lengths": f"{lengths} (first batch), {batch * read:,} "
        f"{throughput_unit(superbatch)} per step, padding included",
        "work": f"{cost.flops / 1e9:,.1f} GFLOP of matrix products per step"
        + f", without {', '.join(cost.uncounted)}" * bool(cost.uncounted),
        "memory": f"about {cost.bytes / 1e9:.2f} GB per replica{available}",
    }
    if (caches := getattr(batches.data, "caches", None)) is not None:
        rows["cached"] = caches
    if (over := getattr(batches.data, "over_length", None)) is not None:
        rows[over.handling] = str(over)
    return "\n".join(f"{name:>10}  {text}" for name, text in rows.items())


def _parameters(model):
    """How many parameters there are, and how many are trained if some are frozen."""
    trained = count_parameters(model)
    frozen = sum(math.prod(v.shape) for v in model.variables if is_frozen(v))
    if not frozen:
        return f"{trained:,} parameters"
    return f"{trained + frozen:,} parameters, {trained:,} of them trained"


def parameter_table(model):
    """Returns the trainable variables as a Markdown table."""
    rows = [
        (v.path, list(v.shape), f"{math.prod(v.shape):,}")
        for v in model.trainable_variables
    ]
    rows.append(("**all**", "", f"**{count_parameters(model):,}**"))
    return markdown(["variable", "shape", "parameters"], rows, labels=2)


def count_parameters(model):
    """Returns the number of elements of all trainable variables of a `keras.Model`."""
    return sum(math.prod(v.shape) for v in model.trainable_variables)
