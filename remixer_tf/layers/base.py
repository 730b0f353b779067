"""The interface of residual sublayers, and the context that they read."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import keras
from keras import ops

from remixer_tf.arguments import Cache, PositiveInt, Tensor, checked
from remixer_tf.errors import UserError
from remixer_tf.kernels.project import project
from remixer_tf.layers.axes import NamedAxes, axes_of, build_named, naming
from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.facts import StackFacts, join_stack
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.layers.saving import SavesParts
from remixer_tf.layers.sowing import MixingFacts

# Added to masked logits before a softmax. Finite, so that a row whose keys are
# all masked (a padding query) stays finite.
MASKED = -1e9


class Context(NamedTuple):
    """The tensors that a sublayer may read besides its input, or None.

    A token may be hidden from another for three reasons. It is padding
    (`padding_mask`). It belongs to another example of a packed row (`segment_ids`). It
    comes later (the layer's own `causal`). While decoding, all tensors but the
    encoder's are those of the one position.

    Attributes:
        padding_mask: int32 `[batch, length]`, 1 on real tokens; None where causality
            already hides the (trailing) padding.
        segment_ids: int32 `[batch, length]`, the example each token of a packed row
            belongs to, from 1; 0 on padding. None when unpacked.
        positions: int32 `[batch, length]`, position inside the packed example.
        encoded: `[batch, encoded_length, d_model]`, the encoder's output.
        encoded_mask: int32 `[batch, encoded_length]`, 1 on real tokens.
        encoded_segment_ids: int32 `[batch, encoded_length]`, as `segment_ids`.
        position_bias: `[1, num_heads, length, kv_length]`, added to attention logits.
        tokens: int32 `[batch, length]`, the ids that entered the stack; `[batch, 1]`
            while decoding. None where there are none (images).
        token_mask: int32 `[batch, length]`, 1 on real tokens, also where
            `padding_mask` is None. None: all are real, as while decoding.
    """

    padding_mask: Any = None
    segment_ids: Any = None
    positions: Any = None
    encoded: Any = None
    encoded_mask: Any = None
    encoded_segment_ids: Any = None
    position_bias: Any = None
    tokens: Any = None
    token_mask: Any = None


class DecodeState(NamedTuple):
    """Where decoding step by step is.

    Attributes:
        step: int32 scalar, the position being decoded; or `[batch]`, that of each row,
            for sublayers that say so, see `Sublayer.rows_apart`. There is no ancestry
            then.
        key_positions: int32 `[max_length]`, `0 .. max_length - 1`, the positions that
            the cache holds.
        ancestry: float32 `[batch, writers, 1, readers, max_length]`, in a beam search
            for a sublayer whose cache is not reordered: 1 where a hypothesis (writer)
            wrote a position of the answer that another (reader) continues, else 0.
            None elsewhere: each hypothesis reads its own row of the cache.

    Two beams: beam 1 continues what beam 0 had written at position 0.

        position      0  1  2     written by
        beam 0        a  b  c     0  0  0     ancestry[0, :, 0, 0] = [[1, 1, 1],
                                                                      [0, 0, 0]]
        beam 1        a  d  e     0  1  1     ancestry[0, :, 0, 1] = [[1, 0, 0],
                                                                      [0, 1, 1]]

    No cache moves: beam 1 reads the key of "a" in the row of beam 0.
    """

    step: Any
    key_positions: Any
    ancestry: Any = None


class Sublayer(SavesParts, NamedAxes, keras.layers.Layer):
    """A shape-preserving layer, `[batch, length, d_model]` to the same.

    It holds no residual connection and no normalisation of its input: `Block` adds
    both. Pass `context` by keyword (Keras wants tensors first). `add_weight` takes the
    names of the weight's axes, see `NamedAxes`.

    Its class says in `causal` whether it may stand in a decoder. To decode step by
    step it overrides `decode_step`, and `init_cache` if it remembers anything. A
    sublayer that treats each position by itself inherits `PositionWise`, and overrides
    neither. With `prefill` it reads a prompt in one call.

    Args:
        causal: bool, whether no output may depend on a later token. None: as the stack
            says that the layer joins; without a stack, False.
        max_length: int, the longest sequence, for layers that need to know it. None: as
            the stack says.

    Attributes:
        causal: on the class, False if outputs depend on later tokens, True if they
            never do, and None if the layer's own `causal` decides. On a layer, a bool.
        max_length: int or None, see the argument.
        depends_on_padding: bool, whether outputs on real tokens change with the amount
            of padding behind them, though `context.padding_mask` hides it.
        reorders_cache: bool, whether a beam search moves the cache's rows when its
            hypotheses change places. Each hypothesis then looks like an example of its
            own. Set it to False if `decode_step` reads `state.ancestry`, or if the
            cache keeps nothing of hypotheses. A subclass with a `decode_step` of its
            own sets it again: see `reorders_cache`.
        rows_apart: bool, whether `decode_step` and `prefill` take rows that are each at
            a position of its own: `state.step` is then `[batch]`, and a server answers
            the next question in the place of a row that has ended. A subclass with a
            `decode_step` of its own sets it again.
        first_scorable: int, in a decoder the first position whose output depends on no
            later token. Earlier positions get no loss and no score.
        causal_in_training: bool, False on a causal layer whose outputs in training
            depend on later tokens by design, as BASE's do. Tests for leaks then call it
            as in evaluation.
        lora_projections: tuple of str, the projections (made by `base.dense`) that get
            adapters if `Lora.layers` names none. A subclass may lack those that it
            inherits.
        reads_encoder: bool, whether the sources of the "attention" that it sows are the
            encoder's tokens.
        counted_as: str, a kind of its own in a table of costs, as "mixing" in
            "remixer: mixing". None: it counts as a part of what it stands in.
        wide_inputs: tuple of str, its projections whose input has so wide a range that
            they lose more in 8 bits than others: it is a product of activations.
    """

    causal: bool | None = False
    depends_on_padding: bool = False
    reorders_cache: bool = True
    rows_apart: bool = False
    first_scorable: int = 0
    causal_in_training: bool = True
    lora_projections: tuple[str, ...] = ()
    reads_encoder: bool = False
    counted_as: str | None = None
    wide_inputs: tuple[str, ...] = ()

    @checked
    def __init__(
        self,
        causal: bool | None = None,
        max_length: PositiveInt | None = None,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(**kwargs)
        self.max_length = max_length
        if type(self).causal is None:
            self.causal = causal if causal is None else bool(causal)
        elif causal and not self.causal:
            raise UserError(self.not_causal())

    join_stack = join_stack

    @property
    def told_by_stack(self):
        """The names of the `StackFacts` that its stack tells it."""
        depends = type(self).causal is None
        return ("causal", "max_length") if depends else ("max_length",)

    @property
    def stack_facts(self):
        """The facts of its stack, to `tell` layers that it makes in its `build`."""
        return StackFacts(self.causal, self.max_length)

    def not_causal(self):
        """The error text for this layer in a decoder, if it is not causal."""
        return not_causal(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' call, with messages of its own for a wrong input or no context."""
        if len(args) < 2 and "context" not in kwargs:
            raise UserError(
                f"{type(self).__name__} reads a context besides its input. Pass "
                "context=Context(), of remixer_tf.layers, with the masks if there are "
                "any."
            )
        if not self.built:
            self._check_input(args[0] if args else kwargs.get("x"))
        return super().__call__(*args, **kwargs)

    def _check_input(self, x):
        shape = getattr(x, "shape", None)
        if shape is not None and len(shape) != 3:
            raise UserError(
                f"{type(self).__name__} '{self.name}' reads [batch, length, d_model]. "
                f"Received an input of shape {tuple(shape)}, which has {len(shape)} "
                "dimensions."
            )

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        """Transforms a whole sequence.

        Args:
            x: float `[batch, length, d_model]`.
            context: a `Context`.
            training: whether dropout is active.

        Returns:
            float `[batch, length, d_model]`.
        """
        raise NotImplementedError

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        """Makes the empty decoding cache.

        Args:
            batch_size: int or int32 scalar, the rows that are decoded. A search with n
                hypotheses has n successive rows for each example of `context`.
            max_length: int, the number of positions that will be decoded.
            context: a `Context`, with `encoded` where there is an encoder.

        Returns:
            a dictionary of tensors. The first axis of each has n successive entries for
            each row, `n * batch_size` in all, or for each example of `context` if no
            beam search reorders them. What all rows share has a first axis of 1.

        Raises:
            ValueError: the sublayer cannot decode step by step.
        """
        if type(self).decode_step is Sublayer.decode_step:
            raise self._cannot_decode()
        return {}

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        """Transforms position `state.step`, given the earlier ones in `cache`.

        Args:
            x: float `[batch, 1, d_model]`.
            cache: what `init_cache` or the last `decode_step` returned.
            context: a `Context`.
            state: a `DecodeState`.

        Returns:
            float `[batch, 1, d_model]`, and the new cache.

        Raises:
            ValueError: the sublayer cannot decode step by step.
        """
        raise self._cannot_decode()

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        """Reads a prompt of `state.step` positions, with the result of as many steps.

        This method takes the steps one by one. A sublayer overrides it to read all
        positions at once, as `call` does. A class that overrides `decode_step` inherits
        no `prefill`: `read_prompt` then takes its steps. Errors: see `decode_step`.

        Args:
            x: float `[batch, width, d_model]`, with `width` at least `state.step`.
                Positions from `state.step` on only fill the row. They must change
                neither earlier outputs nor later steps. Their outputs are not read.
            cache: what `init_cache` returned.
            context: a `Context` of all positions, without masks and segments but
                `token_mask`.
            state: a `DecodeState`; `step`, at least 1, is the position decoded next.

        Returns:
            float `[batch, width, d_model]`, and the cache for position `state.step`.
        """
        return _take_steps(self, x, cache, context, state)

    def folded_constant(self, size: int) -> Tensor | None:
        """The constant of `size` numbers that a converted file holds for a weight.

        A converter computes what depends on weights alone, such as softmax(H) at the
        length of a file. Returns float32 `[.., n]`, whose rows have a scale each in 8
        bits, or None: there is no such constant, or none of this size.
        """
        return None

    def int8_axes(self) -> dict[str, int]:
        """Attributes with weights that 8 bits hold, and the axis that shares a scale.

        They hold those made with an `int8_axis` too, see `NamedAxes.add_weight`. A
        class names attributes here so that a subclass may make their weights itself.
        An attribute is a weight or a list of weights.
        """
        return {}

    def mixing_facts(self, length: int) -> MixingFacts:
        """Describes, for pictures, the matrix that the layer sows as "mixing".

        Returns a `MixingFacts` for a sequence of this length.
        """
        return MixingFacts()

    def _cannot_decode(self):
        return UserError(
            f"{type(self).__name__} has no decode_step, so layer '{self.path}' cannot "
            "decode step by step. Give it decode_step and init_cache, or inherit "
            "PositionWise if it treats each position by itself."
        )


class PositionWise(Sublayer):
    """A sublayer that treats each position by itself: a step is a call, without cache.

    Call arguments and returns: see `Sublayer`.
    """

    causal = True
    reorders_cache = False
    rows_apart = True

    def _check_input(self, x):
        """Takes positions in any number of dimensions."""

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        return self(x, context=context), cache

    prefill = decode_step


def reorders_cache(part):
    """Whether a beam search reorders the cache of a block or layer and those in it.

    Each class answers for the `decode_step` that it defines, by the attribute
    `reorders_cache`. A class that defines one and says nothing needs the cache
    reordered: its cache holds what the class chose. Layers without `decode_step` are
    not asked.
    """
    own = functools.partial(_of_own_step, name="reorders_cache", unsaid=True)
    return any(map(own, part._flatten_layers()))


def rows_apart(part):
    """Whether each row of a model, block or layer may be at a position of its own.

    Each class answers for the `decode_step` that it defines, by the attribute
    `rows_apart`. A class that defines one and says nothing has all rows in step.
    """
    own = functools.partial(_of_own_step, name="rows_apart", unsaid=False, none=True)
    return all(map(own, part._flatten_layers()))


def _of_own_step(layer, name, unsaid, none=False):
    """What a layer says about its `decode_step`; `none` if it has none."""
    for place in (layer, *type(layer).__mro__):
        if name in vars(place):
            return getattr(layer, name)
        if "decode_step" in vars(place):
            return unsaid
    return none


def reorder_cache(cache, rows):
    """Takes the rows of a cache, int32 `[batch]`, that a beam search continues.

    A tensor `[batch * n, ..]` has n successive entries for each row.
    """
    return keras.tree.map_structure(lambda x: _take_rows(x, rows), cache)


def _take_rows(x, rows):
    size, number = ops.shape(x)[:1], ops.shape(rows)[0]
    known = [n for n in (*size, number) if isinstance(n, int)]
    if known == [number, number]:
        return ops.take(x, rows, axis=0)
    if not size or (len(known) == 2 and known[0] % known[1]):
        raise UserError(
            "A cache that a beam search reorders has the same number of entries "
            f"for each row, along its first axis. Received: {tuple(x.shape)} for "
            f"{number} rows. Return such tensors from init_cache, or set "
            "reorders_cache = False in a class whose decode_step needs no order."
        )
    each = size[0] // number  # entries of a row
    entries = ops.arange(each, dtype="int32")
    index = ops.reshape(rows[:, None] * each + entries, (-1,))
    return ops.take(x, index, axis=0)


def as_read(part, context, state, rows):
    """The context and state that a block or layer reads in a step of so many rows.

    A part whose cache is reordered takes hypotheses for examples.
    """
    if not reorders_cache(part):
        return context, state
    return each_hypothesis(context, rows), state._replace(ancestry=None)


def each_hypothesis(context, rows):
    """The `Context` of so many rows, where it has the encoder's tensors of examples.

    Hypotheses of an example are successive rows: each gets a copy of its example's.
    """
    if context.encoded is None:
        return context
    examples = ops.shape(context.encoded)[0]
    if isinstance(examples, int) and examples == rows:
        return context
    names = ("encoded", "encoded_mask", "encoded_segment_ids")
    tensors = {name: getattr(context, name) for name in names}
    known = isinstance(examples, int) and isinstance(rows, int)
    maximum = max if known else ops.maximum
    # A batch may have no examples, and `grow_cache` asks for a single row.
    number = maximum(rows // maximum(examples, 1), 1)
    return context._replace(
        **{
            name: ops.repeat(x, number, axis=0)
            for name, x in tensors.items()
            if x is not None
        }
    )


def reads_at_once(part):
    """Whether the `prefill` of a layer, block or model is that of its `decode_step`.

    It is not where a class further derived has a `decode_step` of its own.
    """
    for place in (part, *type(part).__mro__):
        if "prefill" in vars(place):
            return True
        if "decode_step" in vars(place):
            return False
    return hasattr(part, "prefill")


def read_prompt(part, x, cache, context, state, *others):
    """`part.prefill`, or as many decoding steps if it has none, see `reads_at_once`.

    `part` is a `Sublayer`, a `Block`, or a part of one. It takes what
    `Sublayer.prefill` does, and `others`: None, or float `[batch, width, ..]`. The
    output may have other channels than x.
    """
    read = part.prefill if reads_at_once(part) else functools.partial(_take_steps, part)
    return read(x, cache, context, state, *others)


def take_step(part, *args):
    """`part.decode_step`, as a function beside `read_prompt`."""
    return part.decode_step(*args)


def _take_steps(part, x, cache, context, state, *others):
    width = x.shape[1]
    missing = state.key_positions.shape[0] - width

    def step(t, cache):
        def here(x, axis=1):
            return None if x is None else ops.take(x, t[None], axis=axis)

        bias = here(context.position_bias, axis=2)
        if bias is not None:
            bias = ops.pad(bias, [[0, 0], [0, 0], [0, 0], [0, missing]])
        at_t = context._replace(
            tokens=here(context.tokens), token_mask=None, position_bias=bias
        )
        now = state._replace(step=t)
        return part.decode_step(here(x), cache, at_t, now, *map(here, others))

    def add_step(t, y, cache):
        y_t, cache = step(t, cache)
        is_t = ops.equal(ops.arange(width, dtype="int32"), t)[:, None]
        return t + 1, ops.where(is_t, y_t, y), cache

    # Step 0 has the shape and dtype of each output.
    y, cache = step(ops.convert_to_tensor(0, "int32"), cache)
    start = ops.convert_to_tensor(1, "int32"), ops.repeat(y, width, axis=1), cache
    end = ops.max(state.step)
    _, y, cache = ops.while_loop(lambda t, *_: t < end, add_step, start)
    return y, cache


def softmax(x):
    """`ops.softmax` over the last axis; of one number it is 1, without a warning."""
    return ops.exp(x - x) if x.shape[-1] == 1 else ops.softmax(x)


def require_max_length(layer):
    """Raises a ValueError unless a layer, in its `build`, knows its `max_length`."""
    if layer.max_length is None:
        raise UserError(
            f"Layer '{layer.path}' needs max_length, the longest sequence: give it to "
            "its stack (in gin: TransformerStack.max_length = %MAX_LENGTH), to a layer "
            "without a stack, or to check_sublayer, as the argument max_length."
        )


def check_length(layer, length):
    """Raises a ValueError for a sequence longer than a layer's `max_length`."""
    if length > layer.max_length:
        raise UserError(
            f"A sequence of {length} tokens is too long for {type(layer).__name__} "
            f"'{layer.path}', made for max_length={layer.max_length}. Shorten the "
            "sequences or build the model with a larger max_length."
        )


def require_causal(layer):
    """Raises a ValueError unless a layer, which is to decode, is causal."""
    if not layer.causal:
        raise UserError(
            f"Only a causal {type(layer).__name__} can decode step by step. Received: "
            f"layer '{layer.path}', which is not causal. A decoder's stack makes it so."
        )


def require_positions(context):
    """Raises a ValueError for packed examples without positions."""
    if context.segment_ids is not None and context.positions is None:
        raise UserError(
            "Packed examples need their positions, the place of each token in its "
            "example. Received: segment_ids without positions. Pass *_positions "
            "beside *_segment_ids."
        )


def require_unpacked(layer, context, why):
    """Raises a ValueError for packed examples; `why` says what mixes them."""
    if context.segment_ids is not None:
        raise UserError(
            f"Layer '{layer.path}' cannot keep packed examples apart: {why}. Received: "
            "segment_ids. Train with packing off (in gin: Batching.pack = False)."
        )


def not_causal(layer):
    """The error text for a layer in a decoder that is not causal."""
    return (
        "a decoder's layers see no later tokens, and the class "
        f"{type(layer).__name__} does not say that it hides them. Take another layer. "
        "A class of your own inherits PositionWise if it treats each position by "
        "itself; it sets causal = True if it always hides later tokens, and causal = "
        "None if it does where self.causal is true."
    )


def update_cache(cached, x, state):
    """Puts `x` at `state.step` of `cached`.

    Both are `[.., length, channels]`, x of length 1. If the step is that of each row,
    these are their first axis. The layout is that of the products that read the cache,
    which then need no transposition.

    A select and not a dynamic slice: it runs in a SavedModel server, on TPU and in
    TFLite alike, and costs no more than the read of the cache that follows.
    """
    here = ops.equal(state.key_positions, by_row(state.step))
    here = ops.reshape(here, (-1, *[1] * (len(cached.shape) - 3), *here.shape[1:], 1))
    return ops.where(here, ops.cast(x, cached.dtype), cached)


def by_row(step):
    """A step of all rows or of each, see `DecodeState`, as `[1 or batch, 1]`."""
    return ops.reshape(step, (-1, 1))


def fill_cache(cached, x):
    """Puts `x`, of any length, at the beginning of an empty cache of `update_cache`."""
    missing = cached.shape[-2] - x.shape[-2]
    others = [[0, 0]] * (len(x.shape) - 2)
    return ops.pad(ops.cast(x, cached.dtype), [*others, [0, missing], [0, 0]])


def read_cache(weights, cached, ancestry=None):
    """The weighted sums of what is cached, float `[batch, heads, queries, channels]`.

    Args:
        weights: float `[batch, heads, queries, length]`. The batch may be 1, if all
            have the same weights; with an ancestry also the queries.
        cached: float `[rows, heads, length, channels]`.
        ancestry: None if rows are the batch. Else see `DecodeState`: rows are
            hypotheses, and so are queries.
    """
    if ancestry is None:
        return ops.matmul(weights, cached)
    weights = join_examples(weights[:, None] * ops.cast(ancestry, weights.dtype))
    sums = ops.matmul(weights, cached)  # of each writer's positions
    return ops.sum(split_examples(sums, ancestry.shape[1]), axis=1)


def split_examples(x, hypotheses):
    """`[batch * hypotheses, ..]`, all else static, to `[batch, hypotheses, ..]`."""
    return ops.reshape(x, (-1, hypotheses, *x.shape[1:]))


def join_examples(x):
    """`[batch, hypotheses, ..]`, all else static, to `[batch * hypotheses, ..]`."""
    return ops.reshape(x, (-1, *x.shape[2:]))


def get_activation(name):
    """The activation called `name`: `gelu` (tanh form), `gelu_exact` or Keras' own.

    Mesh TensorFlow's gelu, and so T5.1.1's, is the tanh approximation; the gMLP
    paper's BERT protocol uses the exact form. They differ by up to 1e-3.

    It takes and returns float16, but computes in float32, as PyTorch's do. At -400
    the derivative of gelu exceeds float16, since it multiplies by 400 before a factor
    of 0 comes. So does `gelu(-400) * 400` where TensorFlow's graphs reorder products.
    """
    if isinstance(name, str) and name in ("gelu", "gelu_exact"):
        act = functools.partial(ops.gelu, approximate=name == "gelu")
    else:
        try:
            act = keras.activations.get(name)
        except (TypeError, ValueError):
            raise UserError(
                "activation must be 'gelu', 'gelu_exact' or the name of one of Keras' "
                f"activations, such as 'relu'. Received: activation={name!r}"
            ) from None

    def activate(x):
        if keras.backend.standardize_dtype(x.dtype) != "float16":
            return act(x)
        return ops.cast(act(ops.cast(x, "float32")), "float16")

    return activate


def wide(policy):
    """The dtype policy of what may exceed float16's 65,504; `policy` but for float16.

    T5's activations do, in the residual stream and where W_o writes into it, and so do
    products of them.
    """
    if policy.compute_dtype == "float16":
        return keras.DTypePolicy("float32")
    return policy


class Dense(keras.layers.Dense):
    """`act(X W + b)`: Keras' layer, on JAX by `project`.

    With an adapter (`enable_lora`) it is `act(X W + alpha / rank drop(X) A B + b)` (Hu
    et al. 2021, "LoRA", Equation 3). Gradients of A and B need none of W.
    """

    def call(self, inputs, training=None):
        matmul = project if keras.backend.backend() == "jax" else ops.matmul
        y = matmul(inputs, self._kernel if self.lora_enabled else self.kernel)
        if self.lora_enabled:
            x = self.lora_dropout(inputs, training=training)
            x = matmul(matmul(x, self.lora_kernel_a), self.lora_kernel_b)
            y = ops.add(y, x * (self.lora_alpha / self.lora_rank))
        if self.bias is not None:
            # In float32: the gradient of b is a sum over all positions.
            b = ops.cast(self.bias, "float32")
            y = ops.cast(ops.cast(y, "float32") + b, y.dtype)
        return y if self.activation is None else self.activation(y)

    def enable_lora(self, rank, *args, dropout_rate=0.0, **kwargs):
        """As Keras' `enable_lora`, with dropout on what A multiplies in training."""
        dropout = Dropout(dropout_rate, name="lora_dropout", dtype=self.dtype_policy)
        rows, columns = axes_of(self._kernel)
        axes = {"lora_kernel_a": (rows, None), "lora_kernel_b": (None, columns)}
        with naming(self, **axes):
            super().enable_lora(rank, *args, **kwargs)
        self._tracker.unlock()
        self.lora_dropout = dropout
        self._tracker.lock()
        with self._open_name_scope():
            self.lora_dropout.build()


def dense(
    name: str,
    input_shape: Sequence[int | None],
    units: int,
    dtype: Any,
    initializer: Any = None,
    axes: tuple[str | None, str | None] | None = None,
    **kwargs: Any,
) -> Dense:
    """A built projection `[..., input_shape[-1]]` to `[..., units]`, without bias.

    Its initialiser is T5's unless another is given: truncated normal of variance
    1/fan-in. `axes` names the kernel's, see `NamedAxes.add_weight`; a bias has the
    second, but for d_model.
    """
    if initializer is None:
        initializer = keras.initializers.VarianceScaling(
            1.0, mode="fan_in", distribution="truncated_normal"
        )
    kwargs = {"use_bias": False, "kernel_initializer": initializer, **kwargs}
    layer = Dense(units, dtype=dtype, name=name, **kwargs)
    names = {} if axes is None else {"kernel": axes}
    if axes and layer.use_bias:
        names["bias"] = tuple(None if x == "d_model" else x for x in axes[1:])
    build_named(layer, input_shape, **names)
    return layer
