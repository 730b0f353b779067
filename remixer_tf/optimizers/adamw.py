"""AdamW as BERT is trained with it."""

import keras


def bert_adamw(learning_rate, weight_decay=0.01, epsilon=1e-6, beta_2=0.999):
    """`keras.optimizers.AdamW` without decay of norms and biases.

    Its defaults are those of the gMLP paper (Table 8, specs 5); the paper clips no
    gradient.

    Args:
        learning_rate: float or schedule.
        weight_decay: float.
        epsilon: float.
        beta_2: float.

    Returns:
        a `keras.optimizers.AdamW`.
    """
    optimizer = keras.optimizers.AdamW(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        epsilon=epsilon,
        beta_2=beta_2,
    )
    # Patterns of variables' names. A rel_embedding holds attention's position biases.
    optimizer.exclude_from_weight_decay(
        var_names=["^(gamma|beta|scale)$", "bias$", "^rel_embedding$"]
    )
    return optimizer
