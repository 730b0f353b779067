"""Tests of a sublayer, ours or a user's own, by the rules that hold for all of them."""

import functools

import keras
import numpy as np
from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.layers import Context, DecodeState
from remixer_tf.layers.base import read_prompt
from remixer_tf.models import TransformerStack

BATCH_SIZE, LENGTH, ENCODER_LENGTH, VOCAB_SIZE = 2, 7, 6, 100


def check_sublayer(
    factory,
    causal=False,
    max_length=None,
    d_model=12,
    reads_encoder=False,
    packs=True,
    decodes=True,
    tolerance=2e-5,
):
    """Tests a sublayer, with random weights and inputs, on Keras' current backend.

    - It returns the shape it received, in float32 and in mixed_bfloat16.
    - Padding changes no output on real tokens, unless it says `depends_on_padding`.
    - Examples packed in a row give what they give alone.
    - In a decoder, no output depends on a later token. Decoding step by step, and
      reading a prompt in one call, give what a call on the whole sequence gives.
    - A new layer with its weights, by their paths, gives the same outputs.
    - Gradients reach all weights and are finite.

    ```python
    from remixer_tf.layers import PositionWise
    from remixer_tf.testing import check_sublayer


    class Scale(PositionWise):
        def build(self, input_shape):
            self.scale = self.add_weight(name="scale", shape=input_shape[-1:])

        def call(self, x, context, training=False):
            return x * self.scale


    check_sublayer(Scale, causal=True)
    ```

    Args:
        factory: a class or function of `name` and `dtype` that returns a new sublayer
            without dropout, as `TransformerStack.sublayers` has it.
        causal: bool, whether to test it as in a decoder.
        max_length: int, the stack's, see `TransformerStack`; at least 7, the length of
            the sequences.
        d_model: int, channels of the inputs.
        reads_encoder: bool, whether it reads `context.encoded`.
        packs: bool. False is for a layer that refuses packed rows, with a ValueError.
        decodes: bool. False is for a layer that is never asked to decode.
        tolerance: float, by how much outputs that are equal in theory may differ, times
            the largest of them or 1.

    Raises:
        ValueError: a rule does not hold. The message names the layer, and the position
            or weight.
    """

    def make(dtype):
        kwargs = {"causal": causal, "max_length": max_length, "dtype": dtype}
        stack = TransformerStack({"sublayer": factory}, num_layers=1, **kwargs)
        layer = stack.blocks[0].sublayer
        layer.build((None, None, d_model))
        return layer

    layer = make("float32")
    for weight, value in random_values(layer.trainable_variables):
        weight.assign(value)
    trial = Trial(layer, d_model, LENGTH, reads_encoder, tolerance=tolerance)
    trial.jit = compiled
    trial.check_shape()
    if causal:
        trial.check_causal()
    if causal and decodes:
        trial.check_decoding()
    trial.check_padding()
    trial.check_packing(refused=not packs)
    trial.check_gradients()
    trial.check_copy(make("float32"), tolerance=0.0)
    trial.check_copy(make("mixed_bfloat16"), tolerance=0.05)


class Trial:
    """A built sublayer and the inputs of its tests, sequences of at least 4 tokens.

    `vocab_size` is that of the ids in `Context.tokens`, `position_bias` the
    `RelativePositionBias` of the layer's stack, or None. For the others see
    `check_sublayer`. `jit` takes a function and the layer whose weights it reads, as
    `compiled` does; at first it compiles nothing.
    """

    def __init__(
        self,
        layer,
        d_model,
        length,
        reads_encoder=False,
        vocab_size=VOCAB_SIZE,
        position_bias=None,
        tolerance=2e-5,
    ):
        rng = np.random.default_rng(1)
        lengths = (length, length, ENCODER_LENGTH)
        self.x, self.others, self.encoded = (
            rng.normal(size=(BATCH_SIZE, n, d_model)).astype("float32") for n in lengths
        )
        self.layer = layer
        if not reads_encoder:
            self.encoded = None
        self.vocab_size = vocab_size
        self.position_bias = position_bias
        self.tolerance = tolerance
        self.jit = lambda function, layer: function
        self.name = f"Layer '{layer.path}' ({type(layer).__name__})"

    def context(self, x, **fields):
        """The `Context` of inputs x, of `fields` and what all calls have."""
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
        return _array(self._call(x, context=self.context(x, **fields)))

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
        self._same(y, y, "returns what is not finite at position {}.")

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
            self._same(
                padded[:, :real],
                alone,
                "reads padding: its output at position {} changes with the padding "
                "behind it. Leave out what context.padding_mask says is padding.",
            )
        if self.encoded is not None:
            mask = np.ones(self.encoded.shape[:2], "int32")
            mask[:, -2:] = 0
            self._same(
                self.run(x, encoded_mask=mask),
                self.run(x, encoded=self.encoded[:, :-2]),
                "reads the encoder's padding: its output at position {} changes with "
                "it. Leave out what context.encoded_mask says is padding.",
            )

    def check_causal(self):
        """Changes later tokens, on which no output may depend.

        Positions before `first_scorable` may see each other.
        """
        y, first = self.run(self.x), self.layer.first_scorable
        for t in range(first + 1, self.x.shape[1]):
            changed = np.concatenate([self.x[:, :t], self.others[:, t:]], axis=1)
            self._same(
                self.run(changed)[:, first:t],
                y[:, first:t],
                "sees later tokens: its output at position {} changes with the tokens "
                f"from position {t} on. A decoder with it is trained on the answers. "
                "An output of a causal layer depends on its own and earlier positions "
                "alone.",
                first,
            )

    def check_decoding(self):
        """Decodes step by step, which gives what a call on the whole gives."""
        y = self.run(self.x)
        cache = self.layer.init_cache(*self.x.shape[:2], self.context(self.x))
        self._same(
            self._decode(0, cache),
            y,
            "decodes otherwise than it trains: at position {}, decode_step gives "
            "another output than a call on the whole sequence. Keep in the cache what "
            "an output needs of earlier positions.",
        )
        self._check_prefill(y)

    def _decode(self, start, cache):
        """The outputs of the steps from `start` on, float32 array."""
        x, outputs = self.x, []
        for t in range(start, x.shape[1]):
            x_t, context = x[:, t : t + 1], self.context(x[:, t : t + 1])
            state = self._state(t)
            if self.position_bias is not None:
                bias = self.position_bias(state.step[None], state.key_positions)
                context = context._replace(position_bias=bias)
            x_t = ops.convert_to_tensor(x_t)
            y_t, cache = self._decode_step(x_t, cache, context, state)
            outputs.append(_array(y_t))
        return np.concatenate(outputs, axis=1)

    def _state(self, step):
        keys = ops.arange(self.x.shape[1], dtype="int32")
        return DecodeState(ops.convert_to_tensor(step, "int32"), keys)

    @functools.cached_property
    def _decode_step(self):
        return self.jit(self.layer.decode_step, self.layer)

    def _check_prefill(self, y):
        """Reads a prompt in one call, then decodes; `y` are the outputs of a call."""
        # The first prompt is shorter than the tensor it comes in.
        read = functools.partial(read_prompt, self.layer)
        prefill = self.jit(read, self.layer)
        whole = self.x.shape[1]
        for length, width in ((whole // 2, whole - 1), (whole, whole)):
            parts = self.x[:, :length], self.others[:, length:width]
            x = np.concatenate(parts, axis=1)
            cache = self.layer.init_cache(*self.x.shape[:2], self.context(self.x))
            x, context = ops.convert_to_tensor(x), self.context(x)
            y_x, cache = prefill(x, cache, context, self._state(length))
            self._same(
                _array(y_x)[:, :length],
                y[:, :length],
                "reads a prompt otherwise than it trains: at position {}, prefill "
                "gives another output than a call on the whole sequence.",
            )
            if length < whole:
                self._same(
                    self._decode(length, cache),
                    y[:, length:],
                    "decodes otherwise after a prompt: at position {}, decode_step "
                    "gives another output after prefill than a call on the whole "
                    "sequence. In prefill, put into the cache what decode_step reads "
                    "of positions before state.step, and nothing of later ones.",
                    length,
                )

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
            self._same(
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
        self._same(
            _array(y),
            self.run(self.x),
            f"differs from a layer of the same weights under {copy.dtype_policy.name} "
            "at position {}.",
            tolerance=tolerance,
        )

    def _same(self, y, expected, words, start=0, tolerance=None):
        """Raises a ValueError with the first position where outputs differ.

        `y` and `expected` are float32 arrays `[batch, length, d_model]`, the first of
        position `start`; NaN equals nothing. `words` say what the layer does wrong,
        with {} for the position. The trial's `tolerance` counts if none is given.
        """
        tolerance = self.tolerance if tolerance is None else tolerance
        errors = np.abs(y - expected).max(axis=(0, 2))
        wrong = ~(errors <= tolerance * max(1.0, np.abs(expected).max()))
        if wrong.any():
            position = start + int(wrong.argmax())
            raise UserError(f"{self.name} {words.format(position)}")


def random_values(weights):
    """Yields weights with values of a size that products keep; none is 0 or 1."""
    rng = np.random.default_rng(0)
    for weight in weights:
        fan_in = np.prod(weight.shape[:-1]) if len(weight.shape) > 1 else 4
        value = rng.normal(size=weight.shape, scale=fan_in**-0.5)
        yield weight, ops.convert_to_tensor(value.astype("float32"), weight.dtype)


def compiled(function, layer=None):
    """Compiles on JAX what `function` makes of arrays; on TensorFlow, leaves it.

    Without jit, JAX compiles every operation by itself, once for each shape: a tiny
    model takes five times as long. The program reads the layer's variables as they are
    at each call, and assigns to them what it changed (the states of random numbers).
    Without `layer`, these are those of `function`, a layer itself.
    """
    if keras.backend.backend() == "tensorflow":
        return function
    import jax

    layer = layer or function

    @jax.jit
    def program(values, args, kwargs):
        states = zip(layer.variables, values, strict=True)
        with keras.StatelessScope(states) as scope:
            outputs = function(*args, **kwargs)
        return outputs, [
            scope.get_current_value(state) for state in layer.non_trainable_variables
        ]

    def call(*args, **kwargs):
        values = [variable.value for variable in layer.variables]
        outputs, states = program(values, args, kwargs)
        for variable, value in zip(layer.non_trainable_variables, states, strict=True):
            variable.assign(value)
        return outputs

    return call


def outputs_and_gradients(function, layer):
    """Differentiates a sum over the outputs of `function()` by the layer's weights.

    Each output counts as y / (1 + |y|), so that masked logits of -1e9 do not drown the
    others. Returns NumPy arrays, `(outputs, {path: gradient})`. Where none reaches a
    weight, TensorFlow says None, JAX zero.
    """
    weights = layer.trainable_variables
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            outputs = function()
            loss = ops.sum(ops.softsign(outputs))
        gradients = tape.gradient(loss, [weight.value for weight in weights])
    else:
        import jax

        def loss_of(values):
            with keras.StatelessScope(zip(weights, values, strict=True)):
                outputs = function()
            return ops.sum(ops.softsign(outputs)), outputs

        gradient_of = jax.jit(jax.grad(loss_of, has_aux=True))
        gradients, outputs = gradient_of([weight.value for weight in weights])
    arrays = [g if g is None else ops.convert_to_numpy(g) for g in gradients]
    names = [weight.path for weight in weights]
    return ops.convert_to_numpy(outputs), dict(zip(names, arrays, strict=True))


def _array(y):
    return ops.convert_to_numpy(ops.cast(y, "float32"))
