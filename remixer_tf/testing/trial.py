"""A layer by itself, and the rules that it has to keep."""

import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.layers import Context
from remixer_tf.testing import decoding
from remixer_tf.testing.leaks import find_leak
from remixer_tf.testing.parts import by_design, comparable, name_of
from remixer_tf.testing.programs import outputs_and_gradients, to_array

BATCH_SIZE, ENCODER_LENGTH, VOCAB_SIZE = 2, 6, 100


class Trial:
    """A built sublayer and the inputs of its tests, sequences of at least 4 tokens.

    `vocab_size` is that of the ids in `Context.tokens`, `position_bias` the
    `RelativePositionBias` of the layer's stack, or None. For the others see
    `check_sublayer`. `jit` takes a function and the layer whose weights it reads, as
    `compiled` does; at first it compiles nothing.
    """

    def __init__(
        self,
        layer: Any,
        d_model: int,
        length: int,
        reads_encoder: bool = False,
        vocab_size: int = VOCAB_SIZE,
        position_bias: Any = None,
        tolerance: float = 2e-5,
    ):
        rng = np.random.default_rng(1)
        lengths = (length, length, ENCODER_LENGTH)
        self.x, self.others, self.encoded = (
            rng.normal(size=(BATCH_SIZE, n, d_model)).astype("float32") for n in lengths
        )
        self.layer = layer
        # The encoder's last two tokens are padding.
        places = np.arange(ENCODER_LENGTH) < ENCODER_LENGTH - 2
        self.encoded_mask = places * np.ones((BATCH_SIZE, 1), "int32")
        if not reads_encoder:
            self.encoded = None
        self.vocab_size = vocab_size
        self.position_bias = position_bias
        self.tolerance = tolerance
        self.jit = lambda function, layer: function
        self.name = name_of(layer)

    def context(self, x, **fields):
        """The `Context` of inputs x, of `fields` and what all calls have."""
        if self.encoded is not None and "encoded" not in fields:
            fields = {"encoded_mask": self.encoded_mask, **fields}
        if self.encoded is not None:
            fields.setdefault("encoded", self.encoded)
            mask = np.ones(fields["encoded"].shape[:2], "int32")
            fields.setdefault("encoded_mask", mask)
        # An id for each input, so that they change and move together.
        ids = 1 + 1000 * np.abs(x[..., 0]) % (self.vocab_size - 1)
        mask = fields.get("padding_mask")
        fields["tokens"] = ids.astype("int32")
        fields["token_mask"] = np.ones(x.shape[:2], "int32") if mask is None else mask
        fields = {name: ops.convert_to_tensor(value) for name, value in fields.items()}
        if self.position_bias is not None:
            fields["position_bias"] = self.position_bias.whole(x.shape[1])
        return Context(**fields)

    def run(self, x, **fields):
        """The outputs of inputs x, float32 array; `fields` are those of a `Context`."""
        return to_array(self._call(x, context=self.context(x, **fields)))

    @functools.cached_property
    def _call(self):
        return self.jit(self.layer, self.layer)

    def check_shape(self):
        """Outputs are finite and have the shape of the inputs."""
        y = self.run(self.x)
        if y.shape != self.x.shape:
            raise UserError(
                f"{self.name} returns the shape {y.shape} for {self.x.shape}. A "
                "sublayer returns the shape it received."
            )
        self.require_same(y, y, "returns what is not finite at position {}.")

    def check_padding(self):
        """Real tokens have the same outputs with much padding, with little and none."""
        if self.layer.depends_on_padding:
            return
        x, real = self.x, self.x.shape[1] - 3
        mask = np.ones(x.shape[:2], "int32")
        mask[:, real:] = 0
        alone = self.run(x[:, :real])
        for length in (real + 1, x.shape[1]):
            padded = self.run(x[:, :length], padding_mask=mask[:, :length])
            self.require_same(
                padded[:, :real],
                alone,
                "reads padding: its output at position {} changes with the padding "
                "behind it. Leave out what context.padding_mask says is padding.",
            )
        if self.encoded is not None:
            mask = np.ones(self.encoded.shape[:2], "int32")
            mask[:, -2:] = 0
            self.require_same(
                self.run(x, encoded_mask=mask),
                self.run(x, encoded=self.encoded[:, :-2]),
                "reads the encoder's padding: its output at position {} changes with "
                "it. Leave out what context.encoded_mask says is padding.",
            )

    def check_causal(self):
        """Changes later tokens, on which no output may depend.

        In evaluation and in training. Positions before `first_scorable` may see each
        other.
        """
        self._check_leak(self._call, training=False)
        call = functools.partial(self.layer, training=True)
        with comparable(self.layer), by_design(self.layer):
            self._check_leak(self.jit(call, self.layer), training=True)

    def _check_leak(self, call, training):
        length, first = self.x.shape[1], self.layer.first_scorable

        def changed(start):
            parts = self.x[:1, :start], self.others[:1, start:]
            return {"x": np.concatenate(parts, axis=1)}

        fields = {}
        if self.encoded is not None:
            fields["encoded"] = np.repeat(self.encoded[:1], BATCH_SIZE, axis=0)

        def of_two(x):
            with keras.StatelessScope():  # Each call draws the same random numbers.
                return to_array(call(x, context=self.context(x, **fields)))

        def run(batch):
            """Two rows a call, as all tests have, so that JAX compiles nothing anew."""
            rows = batch["x"]
            x = np.concatenate([rows, self.x[: len(rows) % BATCH_SIZE]])
            found = [of_two(rows) for rows in np.split(x, len(x) // BATCH_SIZE)]
            return np.concatenate(found)[: len(rows)]

        batch, starts = {"x": self.x[:1]}, range(first + 1, length)
        leak = find_leak(run, batch, changed, starts, first, self.name, training)
        if leak is not None:
            raise leak.error(self.name, length, training)

    def check_decoding(self):
        """Decodes step by step, which gives what a call on the whole gives."""
        decoding.check(self)

    def check_packing(self, refused=False):
        """Two examples in a row have the outputs they have alone, or raise an error."""
        x, (batch, length) = self.x, self.x.shape[:2]
        half, end = length // 2, length - 1  # The last position is padding.
        ids = np.array([[1] * half + [2] * (end - half) + [0]] * batch, "int32")
        positions = [[*range(half), *range(end - half), 0]] * batch
        fields = {
            "segment_ids": ids,
            "positions": np.array(positions, "int32"),
            "padding_mask": (ids > 0).astype("int32"),
        }
        alone = {}, {}
        if self.encoded is not None:
            alone = [{"encoded": part} for part in np.split(self.encoded, 2, axis=1)]
            ids = np.repeat([[1, 2]] * batch, ENCODER_LENGTH // 2, axis=1)
            fields["encoded_segment_ids"] = ids.astype("int32")
            fields["encoded_mask"] = np.ones_like(self.encoded_mask)
        try:
            packed = self.run(x, **fields)
        except ValueError:
            if refused:
                return
            raise
        if refused:
            raise UserError(
                f"{self.name} does not refuse packed rows. If it cannot keep examples "
                "apart, raise a ValueError where context.segment_ids is not None."
            )
        for start, stop, fields in ((0, half, alone[0]), (half, end, alone[1])):
            self.require_same(
                packed[:, start:stop],
                self.run(x[:, start:stop], **fields),
                "mixes packed examples: its output at position {} of a packed row is "
                "not that of the example alone. Use context.segment_ids and "
                "context.positions, or train with packing off (Batching.pack = False).",
                start,
            )

    def check_gradients(self):
        """They reach all weights, and are finite."""
        x, context = ops.convert_to_tensor(self.x), self.context(self.x)
        _, gradients = outputs_and_gradients(
            lambda: self.layer(x, context=context), self.layer
        )
        for path, gradient in gradients.items():
            if gradient is None:
                raise UserError(f"{self.name}: no gradient reaches the weight {path}.")
            if not np.isfinite(gradient).all():
                raise UserError(
                    f"{self.name}: the gradient of the weight {path} is not finite."
                )

    def check_copy(self, copy, tolerance):
        """Another built layer with the weights, by their paths, gives the same."""
        values = {weight.path: weight for weight in self.layer.weights}
        paths = [weight.path for weight in copy.weights]
        if sorted(values) != sorted(paths) or len(values) < len(self.layer.weights):
            raise UserError(
                f"{self.name}: the weights of two such layers have other paths, by "
                "which checkpoints know them, or some have the same path: "
                f"{sorted(values)} and {sorted(paths)}. Give each weight and layer a "
                "name of its own."
            )
        for weight in copy.weights:
            if weight.trainable and weight.dtype != "float32":
                raise UserError(
                    f"{self.name}: the weight {weight.path} is {weight.dtype} under "
                    f"{copy.dtype_policy.name}. Weights are float32."
                )
            weight.assign(values[weight.path])
        x, context = ops.convert_to_tensor(self.x), self.context(self.x)
        y = self.jit(copy, copy)(x, context=context)
        dtype = keras.backend.standardize_dtype(y.dtype)
        if dtype != copy.compute_dtype:
            raise UserError(
                f"{self.name} returns {dtype} under {copy.dtype_policy.name}. Cast to "
                "self.compute_dtype."
            )
        self.require_same(
            to_array(y),
            self.run(self.x),
            f"differs from a layer of the same weights under {copy.dtype_policy.name} "
            "at position {}.",
            tolerance=tolerance,
        )

    def same(self, y, expected, tolerance=None):
        """Where outputs are equal, bool `[length]`; NaN equals nothing.

        `y` and `expected` are float32 arrays `[batch, length, d_model]`. The trial's
        `tolerance` counts if none is given.
        """
        tolerance = self.tolerance if tolerance is None else tolerance
        errors = np.abs(y - expected).max(axis=(0, 2))
        return errors <= tolerance * max(1.0, np.abs(expected).max())

    def require_same(self, y, expected, words, start=0, tolerance=None):
        """Raises a ValueError with the first position where outputs differ, see `same`.

        The first of the arrays is position `start`. `words` say what the layer does
        wrong, with {} for the position.
        """
        same = self.same(y, expected, tolerance)
        if not same.all():
            raise UserError(f"{self.name} {words.format(start + int(same.argmin()))}")
