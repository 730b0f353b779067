"""A model as one of Keras' own: `fit`, `save` and `get_config`."""

import keras
from keras import ops

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
        losses = keras.losses.sparse_categorical_crossentropy(
            y, ops.cast(y_pred, "float32"), from_logits=True
        )
        weights = ops.ones_like(losses)
        if sample_weight is not None:
            weights = ops.cast(sample_weight, "float32")
        loss = ops.divide_no_nan(ops.sum(losses * weights), ops.sum(weights))
        return sum(self.losses, loss)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y, sample_weight = self._targets(x, y, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _targets(self, batch, targets, weights):
        """Targets and weights, from the batch unless they are given."""
        if targets is None:
            return targets_and_weights(scorable(batch, self))
        return targets, weights

    def get_build_config(self):
        return {"built": self.built}

    def build_from_config(self, config):
        self.build()
