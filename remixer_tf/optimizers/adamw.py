"""AdamW as BERT is trained with it."""

import keras

# The end of a variable's name, after which TensorFlow writes a number. A rel_embedding
# holds the position biases of attention.
_NORMS_AND_BIASES = r"\b(gamma|beta|scale|\w*bias|rel_embedding)(:\d+)?$"


def bert_adamw(learning_rate, weight_decay=0.01, epsilon=1e-6, beta_2=0.999):
    """`keras.optimizers.AdamW` without decay of norms and biases.

    The defaults are those of the gMLP paper (Table 8), which clips no gradient.

    Args:
        learning_rate: float or schedule.
        weight_decay: float.
        epsilon: float.
        beta_2: float.

    Returns:
        a `keras.optimizers.AdamW`.
    """
    optimizer = keras.optimizers.AdamW(
        learning_rate, weight_decay, beta_2=beta_2, epsilon=epsilon
    )
    optimizer.exclude_from_weight_decay(var_names=[_NORMS_AND_BIASES])
    return optimizer
