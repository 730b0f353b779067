"""`fit`, `save` and `get_config` of models, by Keras' own means."""

import html

import keras

from remixer_tf.layers.saving import SavesParts
from remixer_tf.models.batches import scorable, targets_and_weights


class KerasModel(SavesParts, keras.Model):
    """A model that `fit` trains, on its own batches or on (batch, targets, weights).

    A batch alone has targets and weights under seqio's names. The loss is what
    `compile` got, which sees them so; without one it is T5's, the cross entropy of all
    targets divided by their weights. Losses that layers sow, such as those that balance
    experts, are added, each with the weight 1. Metrics in `compile`'s
    `weighted_metrics` see the weights.

    Example:
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


def html_table(rows):
    """Returns {name: value} as a table in HTML, for notebooks."""
    cells = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"
