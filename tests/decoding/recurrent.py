"""A recurrent network of a few numbers, to try searches on: fast, and easy to redo."""

import itertools

import numpy as np
from keras import ops

from remixer_tf.layers import Context

VOCAB_SIZE, EOS = 6, 1
_RNG = np.random.default_rng(4)
EMBEDDING, RECURRENT, OUT = (
    _RNG.normal(size=shape).astype("float32")
    for shape in ((VOCAB_SIZE, 8), (8, 8), (8, VOCAB_SIZE))
)


class Recurrent:
    """Decodes as models do: h = tanh(h R + E[token]), logits = h O.

    Args:
        reads_prompt: bool, whether inputs are a prompt, as for a language model. Else
            each row starts from a state of its own, that of the inputs' sum.
    """

    variables = non_trainable_variables = ()

    def __init__(self, reads_prompt=False):
        self.reads_prompt = reads_prompt

    def prompt(self, batch):
        inputs = ops.convert_to_tensor(batch["encoder_input_tokens"])
        return inputs if self.reads_prompt else inputs[:, :0]

    def start_decoding(self, batch, max_length, hypotheses=1):
        inputs = ops.cast(batch["encoder_input_tokens"], "float32")
        state = ops.sin(ops.sum(inputs, axis=1, keepdims=True) * np.arange(8.0))
        if self.reads_prompt:
            state = ops.zeros_like(state)
        state = ops.repeat(ops.cast(state, "float32"), hypotheses, axis=0)
        return Context(), {"state": state}

    def grow_cache(self, context, cache, max_length):
        return cache

    def reorder_cache(self, cache, rows):
        return {"state": ops.take(cache["state"], rows, axis=0)}

    def prefill(self, tokens, cache, context, state):
        for t in range(tokens.shape[1]):
            _, new = self.decode_step(tokens[:, t], cache, context, state)
            read = ops.where(t < state.step, new["state"], cache["state"])
            cache = {"state": read}
        return cache

    def decode_step(self, tokens, cache, context, state):
        embedded = ops.take(ops.convert_to_tensor(EMBEDDING), tokens, axis=0)
        state = ops.tanh(ops.matmul(cache["state"], RECURRENT) + embedded)
        return ops.matmul(state, OUT), {"state": state}

    def log_probs(self, inputs, written):
        """Of the next token, float64 `[VOCAB_SIZE]`, in NumPy; see `logits`."""
        logits = self.logits(inputs, written)
        return logits - np.log(np.exp(logits).sum())

    def logits(self, inputs, written):
        """Logits of the next token after `written`, float64 `[VOCAB_SIZE]`, in NumPy.

        Args:
            inputs: int array `[length]`, one example's.
            written: list of ints.
        """
        inputs = np.asarray(inputs)
        if self.reads_prompt:
            state, tokens = np.zeros(8), [0, *inputs[inputs > 0], *written]
        else:
            state, tokens = np.sin(inputs.sum() * np.arange(8.0)), [0, *written]
        for token in tokens:
            state = np.tanh(state @ RECURRENT.astype("float64") + EMBEDDING[token])
        return state @ OUT.astype("float64")

    def answers(self, inputs, max_length):
        """Every answer: yields (log-probability, tokens), cut ones without EOS too."""
        for length in range(1, max_length + 1):
            for text in itertools.product(range(VOCAB_SIZE), repeat=length):
                ends = text.index(EOS) + 1 if EOS in text else None
                if ends == length or (ends is None and length == max_length):
                    yield self.log_prob(inputs, text), list(text)

    def log_prob(self, inputs, text):
        """An answer's log-probability, float."""
        steps = (
            self.log_probs(inputs, list(text[:i]))[token]
            for i, token in enumerate(text)
        )
        return sum(steps)


def inputs(rows=5, seed=0):
    """A batch of rows of different lengths."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(2, VOCAB_SIZE, (rows, 6)).astype("int32")
    for row in range(rows):
        tokens[row, 6 - row % 4 :] = 0
    return {"encoder_input_tokens": tokens}
