"""`check_model`: no decoder of a model sees later tokens, no encoder padding."""

import functools
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from remixer_tf.errors import UserError
from remixer_tf.layers import capture
from remixer_tf.models import TransformerStack
from remixer_tf.objectives.batches import depends_on_padding
from remixer_tf.testing.leaks import at_fault, find_leak, first_change
from remixer_tf.testing.parts import (
    by_design,
    calling,
    causal_stacks,
    comparable,
    is_outside,
    made_outside,
    name_of,
    random_values,
)
from remixer_tf.testing.programs import compiled, in_graph, to_array

# A call of all rows has so many numbers in each activation at most: 8 MiB. All
# positions of 128 are tested at d_model = 128, and 15 of 256 at 512.
MOST_NUMBERS = 2**21


def check_model(model: Any, batch: Mapping[str, Any]) -> None:
    """Tests that decoders see no later token, and encoders no padding.

    A decoder that sees the tokens it is to predict learns nothing, and its loss looks
    good. This test runs the whole model on a row of random ids, changes the ids from a
    position on, and compares the outputs before it. It tries each position, or evenly
    spread ones of a long row, in evaluation and in training, with the same random
    numbers. An encoder's outputs on real tokens have to be the same with padding and
    without, unless a layer says `depends_on_padding`.

    The arithmetic is float32, whatever the model's precision: its rounding then hides
    no leak above a ten-thousandth of the outputs. Blocks with parts from outside this
    package have random weights, since initial zeros may hide a leak. Weights that are
    not trainable keep what they hold, unless it is one number everywhere. The model
    keeps its own.

    ```python
    import numpy as np
    import remixer_tf as rt
    from remixer_tf.testing import check_model

    model = rt.create("gmlp_lm_tiny", vocab_size=64, max_length=32)
    check_model(model, {"decoder_input_tokens": np.zeros((1, 32), "int32")})
    ```

    Args:
        model: a built `EncoderDecoder`, `DecoderOnly`, `EncoderOnly` or other
            `keras.Model` with a causal `TransformerStack`. Others have nothing to test.
        batch: dictionary of arrays `[batch, length, ..]`, or of what has such a shape.
            Names and lengths count: use those of training.

    Raises:
        ValueError: an output depends on what it must not see. The message names the
            layer in which the dependence begins, and the position.

    Warns:
        UserWarning: two equal calls in training differ, since a layer draws random
            numbers that `keras.random` does not give. Training is then not tested.
    """
    rows = {
        name: (tuple(value.shape)[1:], keras.backend.standardize_dtype(value.dtype))
        for name, value in batch.items()
    }
    check = _ModelCheck(model, rows, list(random_values(made_outside(model))))
    with comparable(model):
        if check.decodes:
            check.leaks(training=False)
            with by_design(model):
                check.leaks(training=True)
        if check.encodes and not depends_on_padding(model):
            check.padding()


class _ModelCheck:
    """The calls of `check_model`.

    `rows` are the shapes and dtypes of a row's features, by name; `values` are
    (variable, value) for the calls. A batch has one row of NumPy arrays.
    """

    def __init__(self, model, rows, values):
        self.model, self.values = model, values
        self.rng = np.random.default_rng(1)
        self.vocab_size = _vocabulary_size(model)
        self.decodes = "decoder_input_tokens" in rows and bool(causal_stacks(model))
        encoder = getattr(model, "encoder", None)
        self.encodes = "encoder_input_tokens" in rows and (
            isinstance(encoder, TransformerStack) and hasattr(model, "encode")
        )
        self.batch = {name: self._feature(name, *row) for name, row in rows.items()}
        if self.decodes:  # A position's target is the next one's input.
            self.targets = self.batch["decoder_input_tokens"]
            self._set_targets(self.batch, self.targets)

    def _feature(self, name, row, dtype):
        """Random ids, of two examples where they are packed; 1 or 0 elsewhere."""
        shape = (1, *row)
        if "float" in dtype:
            return self.rng.normal(size=shape).astype(dtype)
        if name.endswith("_tokens"):
            return self.rng.integers(1, self.vocab_size, shape).astype("int32")
        places = np.arange(row[0] if row else 1)
        half = (len(places) + 1) // 2
        if name.endswith("_segment_ids"):
            return (1 + (places >= half)).astype("int32")[None]
        if name.endswith("_positions") and not name.startswith("masked"):
            return np.where(places < half, places, places - half).astype("int32")[None]
        if name.endswith("_weights"):
            return np.ones(shape, "int32")
        return np.zeros(shape, "int32")

    def decode(self, training, batch):
        """The decoder's outputs of a batch."""
        # Logits are many, and each is of its position.
        options = {} if is_outside(self.model) else {"logits": False}
        return self.model(batch, training=training, **options)

    def encode(self, batch):
        """The encoder's outputs, and the decoder's if there is one."""
        if not self.decodes:
            return [self.model.encode(batch)[0]]
        encoder, encoded = self.model.encoder, []
        with calling(encoder, functools.partial(_noted, encoder.call, encoded)):
            y = self.decode(False, batch)
        return [*(x for x, _ in encoded), y]

    def run(self, program, batch):
        """Calls one of these, for arrays. Equal calls draw the same random numbers."""
        with keras.StatelessScope(self.values), capture("losses", lambda *_: None):
            return keras.tree.map_structure(to_array, program(batch))

    def compiled(self, program):
        """One of these, compiled on JAX, as a function of a batch."""
        program = compiled(program, self.model, quickly=True)
        return functools.partial(self.run, program)

    def leaks(self, training):
        """Changes later tokens, on which no output may depend."""
        length = self.targets.shape[1]
        first = getattr(self.model, "first_scorable", 0)
        starts = self._starts(first, length)
        if not len(starts):
            return
        decode = functools.partial(self.decode, training)
        leak = find_leak(
            self.compiled(decode),
            self.batch,
            self._with_other_end,
            starts,
            first,
            name_of(self.model),
            training,
            run_one=self.compiled(in_graph(decode)),
        )
        if leak is None:
            return

        def earlier(a, b):
            whole = a.ndim > 1 and a.shape[:2] == (1, length) and a.shape == b.shape
            here = np.s_[:, first : leak.start]
            return (a[here], b[here]) if whole else None

        runs = [
            functools.partial(self.run, decode, batch)
            for batch in (self.batch, self._with_other_end(leak.start))
        ]
        layer, position = at_fault(self.model, runs, earlier)
        if position is not None:
            leak = leak._replace(position=first + position)
        raise leak.error(name_of(layer), length, training)

    def _starts(self, first, length):
        """Positions from which on ids change: all, or evenly spread ones."""
        model = self.model
        width = self.vocab_size if is_outside(model) else model.d_model
        most = max(4, MOST_NUMBERS // (length * width)) - 1
        starts = np.arange(first + 1, length)
        if len(starts) > most:
            starts = np.linspace(first + 1, length - 1, most).astype(int)
        return starts

    @staticmethod
    def _set_targets(batch, targets):
        features = {
            "decoder_input_tokens": np.pad(targets, [(0, 0), (1, 0)])[:, :-1],
            "decoder_target_tokens": targets,
            "decoder_loss_weights": (targets > 0).astype("int32"),
        }
        batch.update({name: x for name, x in features.items() if name in batch})

    def _with_other_end(self, start):
        """The batch with other inputs from a position on: one id, so that sums move.

        Every second time the row ends with it, where rows are not packed.
        """
        batch, targets = dict(self.batch), self.targets.copy()
        targets[:, start - 1 :] = targets[0, start - 1] % (self.vocab_size - 1) + 1
        if start % 2 == 0 and "decoder_segment_ids" not in batch:
            targets[:, start:] = 0
        self._set_targets(batch, targets)
        return batch

    def padding(self):
        """Leaves out the encoder's padding, on which no output may depend.

        The encoder's rows hold one example, with padding and without.
        """
        length = self.batch["encoder_input_tokens"].shape[1]
        real = max(1, length - max(1, length // 4))
        padded, cropped = dict(self.batch), dict(self.batch)
        places = np.arange(length, dtype="int32")[None]
        features = {
            "encoder_input_tokens": self.batch["encoder_input_tokens"],
            "encoder_token_types": self.batch.get("encoder_token_types"),
            "encoder_segment_ids": np.ones_like(places),
            "encoder_positions": places,
        }
        for name, x in features.items():
            if name in self.batch:
                padded[name] = np.where(places < real, x, 0)
                cropped[name] = x[:, :real]
        if "decoder_segment_ids" in self.batch:
            ones = np.ones_like(self.batch["decoder_segment_ids"])
            padded["decoder_segment_ids"] = cropped["decoder_segment_ids"] = ones
        run = self.compiled(self.encode)
        encoded, *decoded = run(padded)
        encoded_alone, *decoded_alone = run(cropped)
        pairs = [(encoded_alone, encoded[:, :real])]
        pairs += zip(decoded_alone, decoded, strict=True)
        if all(first_change(*pair) is None for pair in pairs):
            return

        def of_real(a, b):
            if a.ndim != 3 or a.shape[0] != 1:
                return None
            if a.shape[1] == length and b.shape[1] == real:  # of the encoder
                a = a[:, :real]
            return (a, b) if a.shape == b.shape else None

        batches = padded, cropped
        runs = [functools.partial(self.run, self.encode, batch) for batch in batches]
        layer, position = at_fault(self.model, runs, of_real)
        position = "a real token" if position is None else f"position {position}"
        raise UserError(
            f"{name_of(layer)} reads the encoder's padding: its output at {position} "
            "changes with the padding behind it. Leave out what context.padding_mask "
            "and context.encoded_mask say is padding, or set depends_on_padding = True "
            "in a class that means to read it."
        )


def _vocabulary_size(model):
    """How many ids may be drawn: those that all embeddings have, at least 2."""
    if hasattr(model, "vocab_size"):
        return max(model.vocab_size, 2)
    layers = model._flatten_layers()
    tables = [x for x in layers if isinstance(x, keras.layers.Embedding)]
    return max(min((table.input_dim for table in tables), default=2), 2)


def _noted(call, notes, *args, **kwargs):
    y = call(*args, **kwargs)
    notes.append(y)
    return y
