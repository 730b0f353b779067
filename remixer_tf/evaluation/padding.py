"""How long the rows are that a model decodes."""

from remixer_tf.models.padding import depends_on_padding


def padded_lengths(model, feature_lengths):
    """The lengths that rows may be padded to with no other answer than `infer`'s.

    Inference pads to `feature_lengths`. Quarters of them save time, and give the same
    where padding is masked and float32 rounds. Otherwise there is one length: a model
    that sees its padding would see less of it than in training; and in bfloat16 a sum
    over fewer zeros may round to another number, and of two tokens that are about as
    likely the other one be written.

    Args:
        model: a `keras.Model`.
        feature_lengths: dictionary of ints. That of targets is not cut: they are not
            read.

    Returns:
        list of dictionaries, as `batch_examples` takes them.
    """
    writes_in_bfloat16 = (
        hasattr(model, "decode_step") and model.compute_dtype != "float32"
    )
    if writes_in_bfloat16 or depends_on_padding(model):
        return [dict(feature_lengths)]
    return [
        {
            name: n if name == "targets" else -(-n * quarter // 4)
            for name, n in feature_lengths.items()
        }
        for quarter in (1, 2, 3, 4)
    ]
