"""Muon, for every matrix between the first layer and the last."""

import re

import keras

from remixer_tf.layers.axes import axes_of

_MANY = ("experts", "mixing_heads")  # axes that number matrices
# In the paths of what is no matrix of a hidden layer: last layers, routers, biases.
_NOT_HIDDEN = (r"\b(logits|classifier|span|router)\b", r"bias(:\d+)?$")


@keras.saving.register_keras_serializable(package="remixer_tf")
class Muon(keras.optimizers.Muon):
    """Muon (Jordan et al. 2024), each matrix of experts and mixing heads by itself.

    Muon trains the matrices of hidden layers, and its AdamW all else: embeddings and
    patches, the last layer, routers, biases, norms, and `exclude_layers`
    (https://kellerjordan.github.io/posts/muon). `keras.optimizers.Muon` takes variables
    of two axes for matrices. So it trains experts and mixing matrices by AdamW, and by
    Muon routers, biases of several heads and the diagonals of Toeplitz matrices, which
    are AdamW's here.

    The arguments are those of `keras.optimizers.Muon`.

    Examples:

    >>> optimizer = Muon(1e-3)
    """

    def _should_use_adamw(self, variable):
        matrix = [
            size
            for size, axis in zip(variable.shape, axes_of(variable), strict=True)
            if axis not in _MANY
        ]
        excluded = [*_NOT_HIDDEN, *self.exclude_layers]
        if self.exclude_embeddings:
            excluded.append("embedding")
        return len(matrix) != 2 or any(re.search(x, variable.path) for x in excluded)

    def lr_adjust(self, x):
        """Scales an update `[..., n, m]` as the original does one `[n, m]`."""
        if self.rms_rate is None:
            return x
        return x * max(x.shape[-2:]) ** 0.5 * self.rms_rate
