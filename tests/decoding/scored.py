"""Scores of given answers by `score`, a pass of a whole model."""

import functools

import numpy as np

from remixer_tf.decoding import score
from tests.compiled import compiled


@functools.cache
def _scorer(model):
    return compiled(functools.partial(score, model), model)


def score_answers(model, batch, texts, eos_id=1):
    """Log-likelihoods of answers, EOS included.

    Args:
        model: an `EncoderDecoder` or a `DecoderOnly`, which continues the inputs.
        batch: with `encoder_input_tokens`, `[rows, length]`.
        texts: int array `[rows, answers, answer_length]`; what follows EOS is ignored.

    Returns:
        float array `[rows, answers]`.
    """
    inputs = np.array(batch["encoder_input_tokens"])
    rows, answers, length = np.shape(texts)
    is_encoder_decoder = hasattr(model, "encoder")
    longest = length + (0 if is_encoder_decoder else inputs.shape[1])
    targets = np.zeros([rows, answers, longest], "int32")
    weights = np.zeros_like(targets)
    for row, example in enumerate(inputs):
        prompt = [] if is_encoder_decoder else example[example > 0].tolist()
        end = len(prompt) + length
        targets[row, :, : len(prompt)] = prompt
        targets[row, :, len(prompt) : end] = texts[row]
        ended = np.cumsum(np.equal(texts[row], eos_id), axis=-1)
        ended -= np.equal(texts[row], eos_id)
        weights[row, :, len(prompt) : end] = ended == 0
    targets = targets.reshape(rows * answers, longest)
    scored = {
        "decoder_input_tokens": np.pad(targets, [(0, 0), (1, 0)])[:, :-1],
        "decoder_target_tokens": targets,
        "decoder_loss_weights": weights.reshape(rows * answers, longest),
    }
    if is_encoder_decoder:
        scored["encoder_input_tokens"] = np.repeat(inputs, answers, axis=0)
    return np.array(_scorer(model)(scored).sums).reshape(rows, answers)
