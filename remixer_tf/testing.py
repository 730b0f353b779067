"""Tests of layers and models, ours or a user's own, by the rules that hold for all."""

import contextlib
import functools
import warnings
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.layers import Context, DecodeState, Dropout, MoE, capture
from remixer_tf.layers.base import (
    as_read,
    each_hypothesis,
    read_prompt,
    reorder_cache,
    reorders_cache,
)
from remixer_tf.models import Block, TransformerStack
from remixer_tf.models.batches import depends_on_padding

__all__ = ["check_model", "check_sublayer"]

BATCH_SIZE, LENGTH, ENCODER_LENGTH, VOCAB_SIZE = 2, 7, 6, 100
# How much outputs may change by rounding, relative to the largest: float32 rounds by
# 6e-8 in each operation. A layer of experts or an FFT adds in another order where later
# tokens are others; the outputs of most layers do not change by a bit.
ROUNDING = 1e-4


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
    - In a decoder, no output depends on a later token. Decoding step by step, reading a
      prompt in one call, and decoding two hypotheses whose caches a beam search moves,
      give what a call on the whole sequence gives.
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
        # The encoder's last two tokens are padding.
        places = np.arange(ENCODER_LENGTH) < ENCODER_LENGTH - 2
        self.encoded_mask = places * np.ones((BATCH_SIZE, 1), "int32")
        if not reads_encoder:
            self.encoded = None
        self.vocab_size = vocab_size
        self.position_bias = position_bias
        self.tolerance = tolerance
        self.jit = lambda function, layer: function
        self.name = f"Layer '{layer.path}' ({type(layer).__name__})"

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
            "an output needs of earlier positions, and leave out what "
            "context.encoded_mask says is padding.",
        )
        self._check_prefill(y)
        self._check_hypotheses(y)

    def _check_hypotheses(self, y):
        """Decodes two hypotheses that a beam search swaps, and then copies the first.

        `y` are the outputs of a call on the inputs x. The second hypothesis of an
        example begins with x, and the first with other inputs. They are swapped at the
        second position. At the third, the second continues the first. Four positions
        are enough.
        """
        batch, length, beams = len(self.x), min(4, self.x.shape[1]), 2
        swapped, copied = 1, 2
        if self.encoded is None:  # Without another call: the other example's.
            others, y_others = self.x[::-1], y[::-1]
        else:
            others, y_others = self.others, self.run(self.others)

        def hypotheses(x, others):
            """Each position of both hypotheses: `[batch * hypotheses, length, ..]`."""
            first = [others[:, :swapped], x[:, swapped:]]
            second = [x[:, :swapped], others[:, swapped:copied], x[:, copied:]]
            both = [np.concatenate(a, axis=1)[:, :length] for a in (first, second)]
            return np.stack(both, axis=1).reshape(batch * beams, length, -1)

        x, expected = hypotheses(self.x, others), hypotheses(y, y_others)
        reorders, rows = reorders_cache(self.layer), batch * beams
        context = self.context(self.x)
        if reorders:
            context = each_hypothesis(context, rows)
        cache = self.layer.init_cache(rows, length, context)
        writers = np.tile(np.arange(beams)[:, None], (1, length))
        outputs = []
        for t in range(length):
            if parents := {swapped: [1, 0], copied: [0, 0]}.get(t):
                earlier = np.arange(length) < t
                writers = np.where(earlier, writers[parents], np.arange(beams)[:, None])
                order = np.arange(batch)[:, None] * beams + parents
                if reorders:
                    cache = reorder_cache(cache, np.ravel(order).astype("int32"))
            # [batch, writers, 1, hypotheses, length]
            ancestry = np.equal(writers, np.arange(beams)[:, None, None])[:, None]
            ancestry = np.tile(ancestry[None], (batch, 1, 1, 1, 1)).astype("float32")
            state = self._state(t, length)
            state = state._replace(ancestry=ops.convert_to_tensor(ancestry))
            y_t, cache = self._step(x[:, t : t + 1], cache, state)
            outputs.append(y_t)
        self._same(
            np.concatenate(outputs, axis=1),
            expected,
            "decodes otherwise in a beam search: at position {}, a hypothesis that "
            "continues another one gets another output than a call on its whole "
            "sequence. Give each tensor of the cache as many entries for each row, "
            "along its first axis. A class with reorders_cache = False reads in "
            "decode_step what state.ancestry says of its rows.",
        )

    def _decode(self, start, cache):
        """The outputs of the steps from `start` on, float32 array."""
        x, outputs = self.x, []
        for t in range(start, x.shape[1]):
            y_t, cache = self._step(x[:, t : t + 1], cache, self._state(t))
            outputs.append(y_t)
        return np.concatenate(outputs, axis=1)

    def _step(self, x, cache, state):
        """The outputs of one position, float32 array, and the new cache."""
        context = self.context(x)
        if self.position_bias is not None:
            bias = self.position_bias(state.step[None], state.key_positions)
            context = context._replace(position_bias=bias)
        context, state = as_read(self.layer, context, state, x.shape[0])
        x = ops.convert_to_tensor(x)
        y, cache = self._decode_step(x, cache, context, state)
        return _array(y), cache

    def _state(self, step, length=None):
        keys = ops.arange(length or self.x.shape[1], dtype="int32")
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


def check_model(model, batch):
    """Tests that decoders see no later token, and encoders no padding.

    A decoder that sees the tokens it is to predict learns nothing, and its loss looks
    good. This test runs the whole model on a row of random ids, changes the ids from a
    position on, and compares the outputs before it. It does so in evaluation, from the
    second, the middle and the last position; and in training, from the middle, with the
    same random numbers. An encoder's outputs on real tokens have to be the same with
    padding and without, unless a layer says `depends_on_padding`.

    The arithmetic is float32, whatever the model's precision: its rounding then hides
    no leak above a ten-thousandth of the outputs. Blocks with parts from outside this
    package have random weights, since initial zeros may hide a leak. The model keeps
    its own.

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
    weights = [w for x in made_outside(model) for w in x.trainable_variables]
    values = list(random_values({id(w): w for w in weights}.values()))
    with comparable(model):
        _ModelCheck(model, rows, values).run()


def made_outside(model):
    """The layers directly in a model or its stacks that have parts not of this package.

    In a stack these are blocks, norms, positions; each counts as a whole. Layers of
    Keras count too, but for the embedding and the product with a matrix.
    """
    return [
        layer
        for layer in _direct_layers(model)
        if any(map(is_outside, layer._flatten_layers()))
    ]


def _direct_layers(layer):
    for part in layer._layers:
        if isinstance(part, TransformerStack):
            yield from _direct_layers(part)
        else:
            yield part


def is_outside(layer):
    """Whether the class of a layer or model is neither of this package nor harmless."""
    cls = type(layer)
    known = keras.layers.Embedding, keras.layers.Dense
    return cls.__module__.partition(".")[0] != "remixer_tf" and cls not in known


def _causal_stacks(model):
    parts = model._flatten_layers()
    stacks = [part for part in parts if isinstance(part, TransformerStack)]
    return [s for s in stacks if s.causal or s is getattr(model, "decoder", None)]


@contextlib.contextmanager
def comparable(model):
    """Lets a model compute so that two of its calls can be compared, inside the block.

    In float32, whatever its precision is; each block by itself, whatever mesh, `remat`
    and `scan` are; with one dropout mask for all rows, and no block left out.
    """
    changed = []

    def change(part, name, value):
        changed.append((part, name, getattr(part, name)))
        setattr(part, name, value)

    distribution = keras.distribution.distribution()
    try:
        keras.distribution.set_distribution(None)
        for part in model._flatten_layers():
            if part.compute_dtype in ("bfloat16", "float16"):
                change(part, "dtype_policy", keras.DTypePolicy("float32"))
            if isinstance(part, TransformerStack):
                change(part, "remat", None)
                change(part, "scan", False)
            if isinstance(part, Dropout):
                change(part, "shared_axes", (0, *part.shared_axes))
            if isinstance(part, Block):
                change(part.stochastic_depth, "rate", 0.0)
        yield
    finally:
        for part, name, value in reversed(changed):
            setattr(part, name, value)
        keras.distribution.set_distribution(distribution)


class _Call(NamedTuple):
    """A layer's inputs and outputs in one call of the model, NumPy arrays."""

    layer: Any
    inputs: list
    outputs: list


class _ModelCheck:
    """The calls of `check_model`, and the search for the layer that is at fault.

    `rows` are the shapes and dtypes of a row's features, by name; `values` are
    (variable, value) for the calls. A batch has one row of NumPy arrays.
    """

    def __init__(self, model, rows, values):
        self.model, self.values = model, values
        self.rng = np.random.default_rng(1)
        self.vocab_size = getattr(model, "vocab_size", 2)
        self.decodes = "decoder_input_tokens" in rows and bool(_causal_stacks(model))
        encoder = getattr(model, "encoder", None)
        self.encodes = "encoder_input_tokens" in rows and (
            isinstance(encoder, TransformerStack) and hasattr(model, "encode")
        )
        self.first = getattr(model, "first_scorable", 0)
        self.batch = {name: self._feature(name, *row) for name, row in rows.items()}
        self._programs = {}

    def run(self):
        """Raises a UserError if something is wrong."""
        places = self._places() if self.decodes else []
        batches = [self.batch, *map(self._with_other_end, places)]
        checks_padding = self.encodes and not depends_on_padding(self.model)
        if checks_padding:
            padded, cropped, real = self._with_padding()
            batches.append(padded)
        if len(batches) == 1:
            return
        found = self.outputs(_joined(batches))
        self._compare(found, places, False)
        if checks_padding:
            self._check_padding(padded, cropped, real, found)
        if places:
            with self._by_design():
                middle = places[len(places) // 2]
                rows = _joined([self.batch, self._with_other_end(middle)])
                self._compare(self.outputs(rows, True), [middle], True)

    def _compare(self, found, places, training):
        """Compares the first row with others, which change from a position on each.

        One call of several rows is quick. Where rows draw other random numbers, or take
        each other's place in an expert, calls of one row each decide.
        """
        for row, t in enumerate(places, start=1):
            y, other = (found[-1][i : i + 1, self.first : t] for i in (0, row))
            if _first_change(y, other) is not None:
                self._check_leak(t, training)

    def _feature(self, name, row, dtype):
        """Random ids, of two examples where they are packed; 1 or 0 elsewhere."""
        shape = (1, *row)
        if "float" in dtype:
            return self.rng.normal(size=shape).astype(dtype)
        if name.endswith("_tokens"):
            return self.rng.integers(1, max(self.vocab_size, 2), shape).astype("int32")
        places = np.arange(row[0] if row else 1)
        half = (len(places) + 1) // 2
        if name.endswith("_segment_ids"):
            return (1 + (places >= half)).astype("int32")[None]
        if name.endswith("_positions") and not name.startswith("masked"):
            return np.where(places < half, places, places - half).astype("int32")[None]
        if name.endswith("_weights"):
            return np.ones(shape, "int32")
        return np.zeros(shape, "int32")

    def _outputs(self, batch, training):
        """The encoder's output, if there is one, and the decoder's: one or two."""
        if not self.decodes:
            return (self.model.encode(batch, training=training)[0],)
        options, encoded = {"training": training}, []
        if not is_outside(self.model):
            options["logits"] = False  # They are many, and each is of its position.
        with contextlib.ExitStack() as stack:
            if self.encodes:
                encoder = self.model.encoder
                call = functools.partial(_noted, encoder.call, encoded)
                stack.enter_context(_calling(encoder, call))
            y = self.model(batch, **options)
        return *(x for x, _ in encoded), y

    def outputs(self, batch, training=False, compile=True):
        """As `_outputs`, float32 arrays; equal calls draw the same random numbers."""
        program = functools.partial(self._outputs, training=training)
        if compile:
            key = training, tuple(x.shape for x in batch.values())
            program = compiled(program, self.model, quickly=True)
            program = self._programs.setdefault(key, program)
        with keras.StatelessScope(self.values), capture("losses", lambda *_: None):
            return [_array(y) for y in program(batch)]

    def _at_fault(self, batches, training, cut):
        """The innermost layer whose inputs agree in two calls, and its outputs do not.

        `cut` takes an array of each call, and returns what must be the same of them, or
        None. The result is the layer and the position, or the model itself and None.
        """
        first, second = (self._calls(batch, training) for batch in batches)

        def change(arrays, others):
            pairs = [cut(a, b) for a, b in zip(arrays, others, strict=False)]
            found = [_difference(*pair) for pair in pairs if pair is not None]
            return [difference for difference in found if difference is not None]

        for one, other in zip(first, second, strict=False):
            if one.layer is not other.layer:
                break
            before = max((d.max() for d in change(one.inputs, other.inputs)), default=0)
            if before > ROUNDING / 10:
                continue
            for difference in change(one.outputs, other.outputs):
                if (wrong := difference > ROUNDING / 10).any():
                    return one.layer, int(wrong.argmax())
        return self.model, None

    def _calls(self, batch, training):
        """The `_Call`s of all layers, in the order in which they return."""
        calls, layers = [], self.model._flatten_layers(include_self=False)

        def noting(layer):
            call = layer.call

            @functools.wraps(call)
            def noted(*args, **kwargs):
                y = call(*args, **kwargs)
                calls.append(_Call(layer, _arrays((args, kwargs)), _arrays(y)))
                return y

            return noted

        with contextlib.ExitStack() as stack:
            for layer in layers:
                stack.enter_context(_calling(layer, noting(layer)))
            self.outputs(batch, training, compile=False)
        return calls

    def _places(self):
        """Positions from which on ids change: the second, the middle, the last."""
        # A position's target is the next one's input.
        self.targets = self.batch["decoder_input_tokens"]
        self._set_targets(self.batch, self.targets)
        length = self.targets.shape[1]
        # The middle one is odd, so that it cuts blocks of even size.
        places = {self.first + 1, (self.first + length) // 2 | 1, length - 1}
        return sorted(t for t in places if self.first < t < length)

    @staticmethod
    def _set_targets(batch, targets):
        features = {
            "decoder_input_tokens": np.pad(targets, [(0, 0), (1, 0)])[:, :-1],
            "decoder_target_tokens": targets,
            "decoder_loss_weights": (targets > 0).astype("int32"),
        }
        batch.update({name: x for name, x in features.items() if name in batch})

    def _with_other_end(self, t):
        """The batch with other inputs from position t on: one id, so that sums move.

        From the middle, the row ends with it, where rows are not packed.
        """
        batch, targets = dict(self.batch), self.targets.copy()
        targets[:, t - 1 :] = targets[0, t - 1] % max(self.vocab_size - 1, 1) + 1
        if 2 < t < targets.shape[1] - 1 and "decoder_segment_ids" not in batch:
            targets[:, t:] = 0
        self._set_targets(batch, targets)
        return batch

    def _with_padding(self):
        """Two batches of the same real tokens, with padding and without; their number.

        The encoder's rows hold one example.
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
        return padded, cropped, real

    def _check_leak(self, t, training):
        """Changes later tokens, on which no output may depend."""
        first, changed = self.first, self._with_other_end(t)
        y, other = (
            self.outputs(batch, training)[-1][:, first:t]
            for batch in (self.batch, changed)
        )
        place = _first_change(y, other)
        if place is None:
            return
        again = self.outputs(self.batch, training)[-1][:, first:t]
        if _first_change(y, again) is not None:
            warnings.warn(
                f"Model '{self.model.name}' is not tested for leaks in "
                f"{'training' if training else 'evaluation'}: two equal calls differ, "
                "or are not finite. Draw random numbers by keras.random with a "
                "SeedGenerator.",
                stacklevel=2,
            )
            return
        length = self.targets.shape[1]

        def earlier(a, b):
            whole = a.ndim > 1 and a.shape[:2] == (1, length) and a.shape == b.shape
            return (a[:, first:t], b[:, first:t]) if whole else None

        batches = self.batch, changed
        layer, position = self._at_fault(batches, training, earlier)
        where = "in training, " if training else ""
        position = first + (place if position is None else position)
        raise UserError(
            f"{_name(layer)} sees later tokens: {where}its output at position "
            f"{position} changes with the tokens from position {t} on, of {length}. A "
            "decoder with it is trained on the answers. An output of a causal layer "
            "depends on its own and earlier positions alone."
        )

    def _check_padding(self, padded, cropped, real, found):
        """Leaves out padding, on which no output may depend.

        The outputs of the padded batch are the last rows of those found.
        """
        encoded, *decoded = (y[-1:] for y in found)
        encoded_alone, *decoded_alone = self.outputs(cropped)
        pairs = [(encoded[:, :real], encoded_alone)]
        pairs += zip(decoded, decoded_alone, strict=True)
        if all(_first_change(y, other) is None for y, other in pairs):
            return
        length = padded["encoder_input_tokens"].shape[1]

        def of_real(a, b):
            if a.ndim != 3 or a.shape[0] != 1:
                return None
            if a.shape[1] == length and b.shape[1] == real:  # of the encoder
                a = a[:, :real]
            return (a, b) if a.shape == b.shape else None

        layer, position = self._at_fault((padded, cropped), False, of_real)
        position = "a real token" if position is None else f"position {position}"
        raise UserError(
            f"{_name(layer)} reads the encoder's padding: its output at {position} "
            "changes with the padding behind it. Leave out what context.padding_mask "
            "and context.encoded_mask say is padding, or set depends_on_padding = True "
            "in a class that means to read it."
        )

    @contextlib.contextmanager
    def _by_design(self):
        """Lets experts choose as in evaluation whose routers couple tokens in training.

        See `Router.causal_in_training`.
        """
        with contextlib.ExitStack() as stack:
            for layer in self.model._flatten_layers():
                if isinstance(layer, MoE) and not layer.router.causal_in_training:
                    call = functools.partial(_in_evaluation, layer.call)
                    stack.enter_context(_calling(layer, call))
            yield


@contextlib.contextmanager
def _calling(layer, call):
    """Lets a layer, when it is called, call this in place of its method `call`."""
    before = vars(layer).get("call")
    object.__setattr__(layer, "call", call)
    try:
        yield
    finally:
        object.__delattr__(layer, "call")
        if before is not None:
            object.__setattr__(layer, "call", before)


def _arrays(values):
    """The tensors in nested values, as arrays."""
    tensors = [x for x in keras.tree.flatten(values) if keras.ops.is_tensor(x)]
    return [
        ops.convert_to_numpy(x) if "int" in str(x.dtype) else _array(x) for x in tensors
    ]


def _difference(y, expected):
    """The largest change at each position of `[1, positions, ..]`, relative.

    It is in units of the largest output; NaN differs from all, and so does each other
    integer. None without positions.
    """
    if not y.size:
        return None
    axes = (0, *range(2, y.ndim))
    if "int" in str(y.dtype):
        return np.where((y != expected).any(axis=axes), np.inf, 0.0)
    change = np.abs(y - expected).max(axis=axes)
    largest = np.abs(expected).max()
    return np.nan_to_num(change / (largest or 1.0), nan=np.inf)


def _first_change(y, other):
    """The first position where outputs differ by more than rounding, or None."""
    difference = _difference(other, y)
    if difference is None or not (difference > ROUNDING).any():
        return None
    return int((difference > ROUNDING).argmax())


def _in_evaluation(call, x, context, training=False):
    return call(x, context=context, training=False)


def _joined(batches):
    return {
        name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]
    }


def _noted(call, notes, *args, **kwargs):
    y = call(*args, **kwargs)
    notes.append(y)
    return y


def _name(layer):
    kind = "Model" if isinstance(layer, keras.Model) else "Layer"
    return f"{kind} '{layer.path}' ({type(layer).__name__})"


def random_values(weights):
    """Yields weights with values of a size that products keep; none is 0 or 1."""
    rng = np.random.default_rng(0)
    for weight in weights:
        fan_in = np.prod(weight.shape[:-1]) if len(weight.shape) > 1 else 4
        value = rng.normal(size=weight.shape, scale=fan_in**-0.5)
        yield weight, ops.convert_to_tensor(value.astype("float32"), weight.dtype)


def compiled(function, layer=None, quickly=False):
    """Compiles on JAX what `function` makes of arrays; on TensorFlow, leaves it.

    Without jit, JAX compiles every operation by itself, once for each shape: a tiny
    model takes five times as long. The program reads the layer's variables as they are
    at each call, and assigns to them what it changed (the states of random numbers).
    Without `layer`, these are those of `function`, a layer itself. `quickly` compiles
    without most optimizations, for a program that runs once.
    """
    if keras.backend.backend() == "tensorflow":
        return function
    import jax

    layer = layer or function

    options = {"xla_backend_optimization_level": 0} if quickly else None

    @functools.partial(jax.jit, compiler_options=options)
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
    others. Returns NumPy arrays, `(outputs, {path: gradient})`; None for a weight that
    no gradient reaches.
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

        values = [weight.value for weight in weights]
        program = jax.jit(jax.grad(loss_of, has_aux=True)).trace(values)
        gradients, outputs = program.lower().compile()(values)
        pairs = zip(gradients, _depends(program.jaxpr.jaxpr), strict=False)
        gradients = [g if reached else None for g, reached in pairs]
    arrays = [g if g is None else ops.convert_to_numpy(g) for g in gradients]
    names = [weight.path for weight in weights]
    return ops.convert_to_numpy(outputs), dict(zip(names, arrays, strict=True))


def _depends(jaxpr):
    """Which outputs of a JAX program are computed from anything but constants."""
    known = {*jaxpr.invars, *jaxpr.constvars}

    def is_known(atom):
        return not hasattr(atom, "val") and atom in known  # A literal has a value.

    for equation in jaxpr.eqns:
        if any(map(is_known, equation.invars)):
            known.update(equation.outvars)
    return [is_known(atom) for atom in jaxpr.outvars]


def _array(y):
    return ops.convert_to_numpy(ops.cast(y, "float32"))
