"""AdamW as BERT is trained with it."""

from typing import Any

import keras

from remixer_tf.arguments import as_python
from remixer_tf.errors import check_range
from remixer_tf.optimizers.options import check_numeric_options

# The end of a variable's name, after which TensorFlow writes a number. A rel_embedding
# holds the position biases of attention.
_NORMS_AND_BIASES = r"\b(gamma|beta|scale|\w*bias|rel_embedding)(:\d+)?$"


def bert_adamw(
    learning_rate: Any,
    weight_decay: float = 0.01,
    epsilon: float = 1e-6,
    beta_2: float = 0.999,
) -> Any:
    """`keras.optimizers.AdamW` without decay of norms and biases.

    The defaults are those of the gMLP paper (Table 8), which clips no gradient.

    Args:
        learning_rate: float or schedule.
        weight_decay: float.
        epsilon: float.
        beta_2: float.

    Returns:
        a `keras.optimizers.AdamW`.

    Raises:
        ValueError: an argument is outside its range.
    """
    learning_rate = as_python(learning_rate)
    return BertAdamW(learning_rate, weight_decay, beta_2=beta_2, epsilon=epsilon)


@keras.saving.register_keras_serializable("remixer_tf")
class BertAdamW(keras.optimizers.AdamW):
    """The optimizer of `bert_adamw`. Keras saves no exclusions, so the class has them.

    Arguments: see `keras.optimizers.AdamW`.
    """

    def __init__(self, *args, beta_2=0.999, epsilon=1e-6, name="adam_w", **kwargs):
        check_range("beta_2", beta_2, "in [0, 1)", lambda x: 0 <= x < 1)
        check_range("epsilon", epsilon, "> 0", lambda x: x > 0)
        options = {"beta_2": beta_2, "epsilon": epsilon, "name": name}
        super().__init__(*args, **options, **kwargs)
        check_numeric_options(self)
        self.exclude_from_weight_decay(var_names=[_NORMS_AND_BIASES])
