"""A Transformer-shaped stack: a list of residual sublayers, repeated."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import (
    Cache,
    Factory,
    PositiveFloat,
    PositiveInt,
    Shape,
    Tensor,
    checked,
)
from remixer_tf.errors import UserError, check_factories, check_range
from remixer_tf.layers.axes import NamedAxes
from remixer_tf.layers.base import (
    Context,
    DecodeState,
    as_read,
    each_hypothesis,
    not_causal,
    read_prompt,
    reorder_cache,
    reorders_cache,
    wide,
)
from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.facts import StackFacts
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.layers.normalization import RMSNorm
from remixer_tf.layers.position_bias import bias_of_step
from remixer_tf.layers.saving import SavesParts, configuration_of
from remixer_tf.models.remat import call_recomputed, check_remat
from remixer_tf.models.scan import call_scanned, check_scan


class Block(keras.layers.Layer):
    """`x + dropout(sublayer(norm(x)))`, the pre-norm residual around every sublayer.

    A block's dtype is that of the norm and the residual stream. The sublayer may have
    another.

    Args:
        sublayer: a `Sublayer`.
        norm: a normalisation layer.
        dropout_rate: float, one mask for all positions.
        survival_probability: float in (0, 1]. Stochastic depth (Huang et al. 2016,
            Equation 5): in training, an example's residual branch is left out with
            probability 1 - p, and divided by p otherwise.

    Call arguments, returns and `reorders_cache`: see `Sublayer`.

    Raises:
        ValueError: if the sublayer returns another shape than it received.
    """

    rows_apart = True  # see `Sublayer`
    reorders_cache = False  # It keeps nothing besides the sublayer's.

    def __init__(
        self,
        sublayer: Any,
        norm: Any,
        dropout_rate: float = 0.0,
        survival_probability: float = 1.0,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(**kwargs)
        self.sublayer = sublayer
        self.norm = norm
        self.dropout = Dropout(
            dropout_rate, shared_axes=(1,), name="dropout", dtype=self.dtype_policy
        )
        self.stochastic_depth = Dropout(
            1 - survival_probability,
            shared_axes=(1, 2),  # one number per example
            name="stochastic_depth",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Shape) -> None:
        self.norm.build(input_shape)
        self.sublayer.build(input_shape)
        self.dropout.build()
        self.stochastic_depth.build()

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        y = self.sublayer(self._read(x), context=context, training=training)
        return self._add(x, y, training)

    def _read(self, x):
        """`norm(x)` in the sublayer's dtype. Its steps are not called by Keras."""
        return ops.cast(self.norm(x), self.sublayer.compute_dtype)

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        cache = self.sublayer.init_cache(batch_size, max_length, context)
        if not isinstance(cache, dict):
            raise UserError(
                f"{type(self.sublayer).__name__}.init_cache returned {cache!r}. "
                "Expected: a dictionary of tensors, {} where nothing is kept."
            )
        return cache

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        y, cache = self.sublayer.decode_step(self._read(x), cache, context, state)
        return self._add(x, y), cache

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        y, cache = read_prompt(self.sublayer, self._read(x), cache, context, state)
        return self._add(x, y), cache

    def _add(self, x, y, training=False):
        if tuple(x.shape) != tuple(y.shape):
            raise UserError(
                "A sublayer returns the shape it received. Received from "
                f"'{self.sublayer.path}': {tuple(y.shape)} for {tuple(x.shape)}"
            )
        y = self.dropout(y, training=training)
        x = ops.cast(x, self.compute_dtype)
        return x + self.stochastic_depth(y, training=training)


class PostNormBlock(Block):
    """`norm(x + dropout(sublayer(x)))`, the post-norm residual (Vaswani et al. 2017).

    As the block of sMLP is drawn (Yu et al. 2022). A stack of them needs no norm after
    its last layer: `TransformerStack.final_norm=False`.

    Args, call arguments and returns: see `Block`.
    """

    def _read(self, x):
        return ops.cast(x, self.sublayer.compute_dtype)

    def _add(self, x, y, training=False):
        return self.norm(super()._add(x, y, training))


class LayerScaleBlock(NamedAxes, Block):
    """`x + scale * dropout(sublayer(norm(x)))`, a learned scale per channel.

    LayerScale (Touvron et al. 2021, "Going deeper with Image Transformers", Equation
    4), which ResMLP has (Touvron et al. 2021, "ResMLP", Equations 2 and 3).

    Args:
        initial_scale: float, the scale's first value. Others, call arguments and
            returns: see `Block`.
    """

    def __init__(
        self,
        sublayer: Any,
        norm: Any,
        dropout_rate: float = 0.0,
        survival_probability: float = 1.0,
        initial_scale: PositiveFloat = 1e-4,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(sublayer, norm, dropout_rate, survival_probability, **kwargs)
        self.initial_scale = initial_scale

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.scale = self.add_weight(
            name="scale",
            shape=input_shape[-1:],
            axes=(None,),
            initializer=keras.initializers.Constant(self.initial_scale),
        )

    def _add(self, x, y, training=False):
        return super()._add(x, y * ops.cast(self.scale, y.dtype), training)


def survival_by_layer(probability, num_layers):
    """The survival probability, in (0, 1], of each layer of a stack, a list of floats.

    `1 - (1 - p) l / (L - 1)` for layer l of L, from 0, as timm has it; the only layer
    of L = 1 has p. (Huang et al. 2016 have `1 - (1 - p) (l + 1) / L`: there the first
    layer may be left out too.) Another probability is a ValueError.
    """
    expected = "a number in (0, 1], where 1 leaves out nothing"
    check_range("survival_probability", probability, expected, lambda x: 0 < x <= 1)
    last = max(num_layers - 1, 1)
    drops = [layer / last for layer in range(num_layers - 1)] + [1.0]
    return [1 - (1 - probability) * drop for drop in drops]


def sublayers_by_layer(sublayers, num_layers):
    """The dictionaries of each layer's sublayers, see `TransformerStack.sublayers`."""
    layers = sublayers
    if callable(sublayers):
        layers = [sublayers(layer) for layer in range(num_layers)]
    elif isinstance(sublayers, dict):
        layers = [sublayers] * num_layers
    if not isinstance(layers, (list, tuple)) or not all(
        isinstance(layer, dict) for layer in layers
    ):
        raise UserError(
            "sublayers must be a dictionary {'name': factory}, a list of one for each "
            f"layer, or a function that returns them. Received: sublayers={sublayers!r}"
        )
    for layer in layers:
        check_factories(**{f"sublayers[{key!r}]": f for key, f in layer.items()})
    if len(layers) != num_layers:
        raise UserError(
            "A list of sublayers has one dictionary a layer. Received: a list of "
            f"{len(layers)} for num_layers={num_layers}. Make them equal, or give "
            "one dictionary for all layers."
        )
    return layers


def make_sublayer(factory, name, dtype):
    """Makes a sublayer, of one's own perhaps.

    Raises a ValueError if its constructor or `call` refuses an argument of the stack,
    if it did not call Keras' constructor, or if `factory` is a layer.
    """
    if isinstance(factory, keras.layers.Layer):
        what = type(factory).__name__
        raise UserError(
            f"A sublayer is given by what makes it, and not as a layer: pass {what} "
            f"(in gin: @{what}), or functools.partial({what}, ...) with its arguments. "
            f"Received: {factory}"
        )
    what = getattr(factory, "__name__", factory)
    init = "`def __init__(self, ..., **kwargs): super().__init__(**kwargs)`"
    try:
        sublayer = factory(name=name, dtype=dtype)
    except TypeError as error:
        if not any(f"keyword argument '{x}'" in str(error) for x in ("name", "dtype")):
            raise
        raise UserError(
            f"{what} must take name and dtype, and hand them on: write {init}."
        ) from None
    if not hasattr(sublayer, "dtype_policy"):
        raise UserError(f"{what} does not call Keras' constructor: write {init}.")
    parameters = inspect.signature(sublayer.call).parameters.values()
    if not any(p.name == "context" or p.kind == p.VAR_KEYWORD for p in parameters):
        raise UserError(
            f"{what}.call must take a context, which it may leave unread: write `def "
            "call(self, x, context, training=False)`."
        )
    return sublayer


class TransformerStack(SavesParts, keras.layers.Layer):
    """`num_layers` layers, each a list of residual sublayers, then a norm.

    Every architecture is an edit of the list: T5.1.1's encoder is
    `{"self_attention": ..., "feed_forward": ...}`, Remixer's puts `"remixer"` in the
    feed-forward's place.

    Its layers, and the layers inside of them, get `causal` and `max_length` as soon as
    they are made: see `StackFacts`. Layers that are made in a layer's `build` get them
    after it.

    Args:
        sublayers: a dictionary from a sublayer's name to a factory that takes `name`
            and `dtype` and returns a new `Sublayer`; in their order in the layer. Where
            layers differ, a list of such dictionaries or a function that returns
            them, see `sublayers_by_layer`.
        num_layers: int.
        position_bias: a factory that takes `name` and returns the
            `RelativePositionBias` shared by all layers, or None.
        norm: a factory that takes `name` and `dtype` and returns a normalisation
            layer.
        dropout_rate: float, on the input, each sublayer's output, and the output.
        survival_probability: float in (0, 1], of stochastic depth in the last layer,
            see `Block` and `survival_by_layer`.
        positions: a factory that takes `name` and `dtype` and returns a layer that
            adds absolute positions to the input, called as `PositionEmbedding`, or
            None.
        input_norm: bool, whether a norm comes before the first layer, after the
            positions (BERT).
        final_norm: bool, whether a norm comes after the last layer.
        block: a factory of the residual around each sublayer: `Block`,
            `PostNormBlock` or `LayerScaleBlock`.
        causal: bool, whether no output may depend on a later token, as in a decoder.
            Models set it: their decoders are causal.
        max_length: int, the longest sequence, which layers such as `RemixerBlock` and
            `PositionEmbedding` need to know; None where no layer does.
        remat: what training computes again for the gradient instead of keeping it.
            "full" keeps each block's input alone. "cheap", on JAX, keeps the products
            of inputs with matrices of weights as well. None keeps all.
        scan: bool, whether training runs one program for all layers, which must be
            equal, see `call_scanned`. JAX only.

    Call arguments:
        x: float `[batch, length, d_model]`, or `[batch, 1, d_model]` while decoding.
        context: a `Context`.
        cache: None, or while decoding what `init_cache` or the last call returned.
        state: None, or while decoding a `DecodeState`.
        training: bool.
        prefill: bool, whether x is a prompt that fills the cache, see
            `Sublayer.prefill`.

    Returns:
        the output, of the shape of x, and the new cache (empty unless decoding).
    """

    @checked
    def __init__(
        self,
        sublayers: Any,
        num_layers: PositiveInt,
        position_bias: Callable[..., Any] | None = None,
        norm: Factory = RMSNorm,
        dropout_rate: float = 0.0,
        survival_probability: float = 1.0,
        positions: Callable[..., Any] | None = None,
        input_norm: bool = False,
        final_norm: bool = True,
        block: Factory = Block,
        causal: bool = False,
        max_length: PositiveInt | None = None,
        remat: str | None = None,
        scan: bool = False,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(**kwargs)
        check_remat(remat)
        dtype = self.dtype_policy
        stream = wide(dtype)  # of the residual stream
        self.causal = bool(causal)
        self.max_length = max_length
        self.remat = remat
        self.scan = scan
        self.num_layers = num_layers
        survival = survival_by_layer(survival_probability, num_layers)
        by_layer = sublayers_by_layer(sublayers, num_layers)
        if scan:
            check_scan(by_layer, survival_probability)
        self.positions = self.position_bias = None
        if positions is not None:
            self.positions = positions(name="positions", dtype=dtype)
            self.stack_facts.tell(self.positions, f"{self.name}/positions")
        self.input_norm = norm(name="input_norm", dtype=stream) if input_norm else None
        self.blocks = [
            block(
                self._make_sublayer(sublayer, key, f"layer_{layer}_{key}"),
                norm(name="norm", dtype=stream),
                dropout_rate,
                survival[layer],
                name=f"layer_{layer}_{key}",
                dtype=stream,
            )
            for layer, members in enumerate(by_layer)
            for key, sublayer in members.items()
        ]
        if position_bias is not None:
            self.position_bias = position_bias(name="position_bias")
            self.stack_facts.tell(self.position_bias, f"{self.name}/position_bias")
        self.final_norm = norm(name="final_norm", dtype=stream) if final_norm else None
        self.input_dropout, self.output_dropout = (
            Dropout(dropout_rate, shared_axes=(1,), name=name, dtype=stream)
            for name in ("input_dropout", "output_dropout")
        )

    def made_parts(self):
        block = type(self.blocks[0])
        name = keras.saving.get_registered_name(block)
        if keras.saving.get_registered_object(name) is not block:
            raise UserError(
                f"{block.__name__} cannot be saved. Register the class with "
                "keras.saving.register_keras_serializable."
            )
        norms = [self.final_norm, *(block.norm for block in self.blocks)]
        sublayers = [{} for _ in range(self.num_layers)]
        for block in self.blocks:
            _, layer, key = block.name.split("_", 2)
            sublayers[int(layer)][key] = configuration_of(block.sublayer)
        return {
            "sublayers": sublayers,
            "norm": next(configuration_of(norm) for norm in norms if norm is not None),
            "block": name,
        }

    @classmethod
    def from_config(cls, config):
        block = keras.saving.get_registered_object(config["block"])
        return super().from_config({**config, "block": block})

    @property
    def first_scorable(self):
        """The largest of all sublayers, see `Sublayer`."""
        firsts = [getattr(block.sublayer, "first_scorable", 0) for block in self.blocks]
        return max(firsts, default=0)

    @property
    def rows_apart(self):
        """See `Sublayer`: whether the absolute positions can be each row's own."""
        return self.positions is None or getattr(self.positions, "rows_apart", False)

    def _make_sublayer(self, factory, key, name):
        sublayer = make_sublayer(factory, key, self.dtype_policy)
        path = f"{self.name}/{name}"
        self.stack_facts.tell(sublayer, path)
        if self.causal and not getattr(sublayer, "causal", False):
            raise UserError(f"Layer '{path}': {not_causal(sublayer)}")
        return sublayer

    @property
    def stack_facts(self):
        """The facts that it tells its layers."""
        return StackFacts(self.causal, self.max_length)

    def build(self, input_shape: Shape) -> None:
        self.d_model = input_shape[-1]
        for layer in (self.positions, self.position_bias, *self.blocks):
            if layer is not None:  # Also one that took another's place.
                self.stack_facts.tell(layer, f"{self.name}/{layer.name}")
        for layer in (self.positions, self.input_norm, self.final_norm):
            if layer is not None:
                layer.build(input_shape)
        if self.position_bias is not None:
            self.position_bias.build()
        self.input_dropout.build()
        for block in self.blocks:
            block.build(input_shape)
            # Also those that it made just now.
            self.stack_facts.tell(block.sublayer, f"{self.name}/{block.name}")
        self.output_dropout.build()

    def call(
        self,
        x: Tensor,
        context: Context,
        cache: Cache | None = None,
        state: DecodeState | None = None,
        training: bool = False,
        prefill: bool = False,
    ) -> tuple[Tensor, Cache]:
        whole = state is None or prefill
        if self.positions is not None:
            x = self.positions(x, context=context, state=None if whole else state)
        if self.input_norm is not None:
            x = self.input_norm(x)
        x = self.input_dropout(x, training=training)
        if self.position_bias is not None:
            if whole:
                bias = self.position_bias.whole(x.shape[1])
            else:
                bias = bias_of_step(self.position_bias, state)
            context = context._replace(position_bias=bias)
        new_cache = {}
        scanned = training and self.scan
        if scanned:
            x = call_scanned(self._blocks_by_layer(), x, context, self.remat)
        for block in () if scanned else self.blocks:
            if training and self.remat:
                x = call_recomputed(block, x, context, self.remat)
            elif state is None:
                x = block(x, context=context, training=training)
            else:
                read = functools.partial(read_prompt, block)
                step = read if prefill else block.decode_step
                seen = as_read(block, context, state, ops.shape(x)[0])
                x, new_cache[block.name] = step(x, cache[block.name], *seen)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return self.output_dropout(x, training=training), new_cache

    def _blocks_by_layer(self):
        """The blocks of each layer, which all have as many."""
        size = len(self.blocks) // self.num_layers
        return [
            self.blocks[layer * size : (layer + 1) * size]
            for layer in range(self.num_layers)
        ]

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        """Empty caches of all blocks, by the blocks' names (see `Sublayer`)."""
        cache = {}
        for block in self.blocks:
            seen = context
            if reorders_cache(block):
                seen = each_hypothesis(context, batch_size)
            cache[block.name] = block.init_cache(batch_size, max_length, seen)
        return cache

    def reorder_cache(self, cache: Cache, rows: Tensor) -> Cache:
        """Takes the rows of a cache, int32 `[batch]`, that a beam search continues.

        Blocks that need no such thing, by `layers.base.reorders_cache`, keep their own.
        Entries that a subclass or model adds to the blocks' caches are reordered.
        """
        kept = {block.name for block in self.blocks if not reorders_cache(block)}
        return {
            name: part if name in kept else reorder_cache(part, rows)
            for name, part in cache.items()
        }

    def grow_cache(self, cache: Cache, max_length: int, context: Context) -> Cache:
        """A cache of `init_cache` or a step, padded or cut to hold `max_length` tokens.

        It gets the length of `context.encoded` too. Entries that a subclass or model
        adds to the blocks' caches stay as they are.
        """
        # One row is enough: only the other axes count.
        empty = self.init_cache(1, max_length, context)

        def pad(value, like):
            pads = [[0, 0]]
            for axis, n in enumerate(like.shape[1:], 1):
                if value.shape[axis] is None or value.shape[axis] > n:
                    value = value[(*[slice(None)] * axis, slice(n))]
                pads.append([0, n - ops.shape(value)[axis]])
            return ops.pad(value, pads)

        own = {name: part for name, part in cache.items() if name not in empty}
        cache = {name: cache[name] for name in empty}
        return {**own, **keras.tree.map_structure(pad, cache, empty)}
