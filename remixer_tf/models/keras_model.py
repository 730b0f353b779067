"""`fit`, `save` and `get_config` of models, by Keras' own means."""

import html

import keras

from remixer_tf.errors import UserError
from remixer_tf.layers import CrossAttention, GatedMLP, RemixerBlock, SelfAttention
from remixer_tf.layers.checks import check_integers
from remixer_tf.layers.saving import SavesParts
from remixer_tf.models.batches import scorable, targets_and_weights

# The projections of each layer that LoRA adapts.
_ADAPTED = {
    (SelfAttention, CrossAttention): ("query", "value"),
    RemixerBlock: ("wi_0", "wi_1", "wo"),
    GatedMLP: ("wi", "wo"),
}


class KerasModel(SavesParts, keras.Model):
    """A model that `fit` trains, on its own batches or on (batch, targets, weights).

    A batch alone has targets and weights under seqio's names. The loss is what
    `compile` got, which sees them so; without one it is T5's, the cross entropy of all
    targets divided by their weights. Losses that layers sow, such as those that balance
    experts, are added, each with the weight 1. Metrics in `compile`'s
    `weighted_metrics` see the weights.

    Examples:
        model = remixer_tf.create("t5_1_1_tiny")
        model.compile(remixer_tf.Adafactor(1e-3), weighted_metrics=["accuracy"])
        model.fit(batches)
    """

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        y, sample_weight = self._targets(x, y, sample_weight)
        if self._compile_loss is not None:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        loss_fn = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight", dtype="float32"
        )
        return sum(self.losses, loss_fn(y, y_pred, sample_weight))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y, sample_weight = self._targets(x, y, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _targets(self, batch, targets, weights):
        """Targets and weights, from the batch unless they are given."""
        if targets is None:
            return targets_and_weights(scorable(batch, self))
        return targets, weights

    def enable_lora(self, rank):
        """Adds low-rank adapters, and freezes all other parameters.

        A kernel W becomes `W + A B`, with A `[inputs, rank]` and B `[rank, outputs]`; B
        starts at zero (Hu et al. 2021, "LoRA", section 4.1). Those of query and value
        of all attentions have adapters; W_1, W_2 and W_3 of Remixer blocks; U and V of
        gMLP blocks. It is Keras' `enable_lora` of each of these layers. `save` adds
        A B to W: a loaded model answers alike, without adapters and not frozen.
        Its optimizer begins anew, as Keras warns.

        Call `compile` afterwards.

        Args:
            rank: int, at most the least axis of these kernels.

        Raises:
            ValueError: the rank is out of its range; the model is not built, has no
                such layer, or has adapters already.

        Examples:
            >>> model = rt.create("remixer_tiny", vocab_size=64, max_length=16)
            >>> model.enable_lora(4)
            >>> sorted({v.name for v in model.trainable_variables})
            ['lora_kernel_a', 'lora_kernel_b']
            >>> model.compile(rt.Adafactor(1e-3))  # Then fit.
        """
        check_integers(rank=rank)
        if not self.built:
            raise UserError(f"{self.name} is not built. Call build() first.")
        if has_lora(self):
            raise UserError(f"{self.name} has LoRA adapters already.")
        adapted = [
            getattr(layer, name)
            for layer in self._flatten_layers()
            for kind, names in _ADAPTED.items()
            if isinstance(layer, kind)
            for name in names
            if hasattr(layer, name)
        ]
        if not adapted:
            raise UserError(
                f"{self.name} has no attention, Remixer or gMLP block for LoRA."
            )
        widest = min(min(layer.kernel.shape) for layer in adapted)
        if rank > widest:
            raise UserError(
                f"rank must be at most {widest}, the least axis of a kernel with an "
                f"adapter. Received: rank={rank}"
            )
        for variable in self.variables:
            variable.trainable = False
        for layer in adapted:
            layer.enable_lora(rank)

    def _repr_html_(self):
        """A table for notebooks."""
        rows = {"model": self.name, "class": type(self).__name__}
        if self.built:
            rows["parameters"] = f"{self.count_params():,}"
        return html_table({**rows, "precision": self.dtype_policy.name})

    def get_build_config(self):
        return {"built": self.built}

    def build_from_config(self, config):
        self.build()


def has_lora(model):
    """Whether a layer of a model has an adapter."""
    layers = model._flatten_layers()
    return any(getattr(layer, "lora_enabled", False) for layer in layers)


def html_table(rows):
    """Returns {name: value} as a table in HTML, for notebooks."""
    cells = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"
