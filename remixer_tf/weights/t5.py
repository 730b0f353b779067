"""Sizes of published T5s, for gin."""

import ast
import itertools
import re
from typing import NamedTuple

from remixer_tf.errors import UserError
from remixer_tf.weights.names import find_name
from remixer_tf.weights.source import check_size
from remixer_tf.weights.values import real, shape_of

# Other libraries' names of activations, and ours (`get_activation`).
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "swish": "silu",
    "silu": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}


# Settings in published gin text that would be another model with the same arrays, and
# the values that are this one's. Mesh TensorFlow writes all of them down.
_PUBLISHED = {
    "attention_func": (None,),
    "fold_scaling_into_initializer": (True,),
    "num_memory_heads": (0,),
    "shared_kv": (False,),
    "relative_attention_type": (None, "bias_shared"),
    "relative_attention_max_distance": (128,),
    r"\w*norm\w*\.epsilon": (1e-6,),
}


class T5(NamedTuple):
    """Sizes and choices of a T5."""

    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_heads: int
    num_encoder_layers: int
    num_decoder_layers: int  # 0 is an encoder alone
    gated: bool  # whether the feed-forward layer is T5.1.1's
    activation: str  # see `get_activation`
    tied_logits: bool
    num_buckets: int = 32
    max_distance: int = 128
    epsilon: float = 1e-6  # of the norms
    dropout_rate: float = 0.1
    own_biases: bool = False  # whether each layer has its own position bias (umT5)

    def architecture(self):
        """The gin files of the model, and the bindings of its sizes: a pair."""
        feed_forward = "GatedFeedForward" if self.gated else "FeedForward"
        sizes = (*self._fields[:7], "dropout_rate")
        files = ["t5_1_1" if self.gated else "t5_1_0"]
        files += ["umt5"] * self.own_biases
        files += ["t5_encoder"] * (not self.num_decoder_layers)
        return tuple(f"architectures/{file}.gin" for file in files), {
            **{name.upper(): getattr(self, name) for name in sizes},
            "EncoderDecoder.tied_logits": self.tied_logits,
            f"{feed_forward}.activation": self.activation,
            "RelativePositionBias.num_buckets": self.num_buckets,
            "RelativePositionBias.max_distance": self.max_distance,
            "RMSNorm.epsilon": self.epsilon,
        }

    def check_fits(self, shapes):
        """Raises ValueError as `check_size` does for the arrays {name: shape}."""
        inner, layers = self.num_heads * self.d_kv, self.num_encoder_layers
        encoder = self.d_model * (4 * inner + (2 + self.gated) * self.d_ff)
        decoder = encoder + 4 * self.d_model * inner
        bias = self.num_heads * self.num_buckets
        size = self.vocab_size * self.d_model + bias
        size += layers * encoder + self.num_decoder_layers * decoder
        check_size("T5", size, layers + self.num_decoder_layers, shapes)


def t5_from_shapes(shapes, rows, text):
    """The sizes of a T5, from the shapes of the published arrays, {name: shape}.

    `rows` are their table, see `weights.names`. `text` is the gin text that was
    published with them. It names activations and dropout. Without it they are T5's:
    relu, or gelu in the gated layer; 0.1.
    """

    def shape(path, rank=2):
        return shape_of(shapes, find_name(path, rows)[0], rank, "every T5")

    def has(path):
        return find_name(path, rows)[0] in shapes

    def num_layers(stack):
        numbers = itertools.count()
        norm = "{}/layer_{}_self_attention/norm/scale"
        return next(n for n in numbers if not has(norm.format(stack, n)))

    feed_forward = "encoder/layer_0_feed_forward/feed_forward/{}/kernel"
    gated = has(feed_forward.format("wi_0"))
    activations = published_activations(text) or (
        ["gelu", "linear"] if gated else ["relu"]
    )
    if len(activations) != 1 + gated or activations[1:] not in ([], ["linear"]):
        raise UserError(
            f"The published gin text has the activations {activations}, but the "
            f"feed-forward layers have {1 + gated} input matrices. Expected: one "
            "activation for each, of two the second 'linear'."
        )
    if activations[0] not in ACTIVATIONS:
        raise UserError(
            f"The activation {activations[0]!r} is not known here. Known: "
            f"{', '.join(ACTIVATIONS)}."
        )
    vocab_size, d_model = shape("token_embedding/embeddings")
    num_heads, num_buckets = shape("encoder/position_bias/rel_embedding")
    inner = shape("encoder/layer_0_self_attention/self_attention/query/kernel")[-1]
    dropout = re.search(r"(?im)^dropout_rate = (\d+\.?\d*|\.\d+)$", text)
    dropout = {"dropout_rate": float(dropout[1])} if dropout else {}
    model = T5(
        vocab_size=vocab_size,
        d_model=d_model,
        d_kv=inner // num_heads,
        d_ff=shape(feed_forward.format("wo"))[0],
        num_heads=num_heads,
        num_encoder_layers=num_layers("encoder"),
        num_decoder_layers=num_layers("decoder"),
        gated=gated,
        activation=ACTIVATIONS[activations[0]],
        tied_logits=not has("logits/kernel"),
        num_buckets=num_buckets,
        dropout_rate=real(dropout, "dropout_rate", 0.1),
    )
    model.check_fits(shapes)
    _check_published(text)
    return model


def _check_published(text):
    """Raises a ValueError if published gin text describes another model than T5."""
    for name, known in _PUBLISHED.items():
        for line, value in re.findall(rf"(?m)^(\S*\b{name} = (.+))$", text):
            # A macro or a reference is no literal.
            if _literal(value, known[0]) not in known:
                raise UserError(
                    f"The published gin text has {line[:100]!r}. Expected: "
                    f"{' or '.join(map(repr, known))}, as T5 has it here."
                )


def published_activations(text):
    """The activations that Mesh TensorFlow's or T5X's gin text names, a list."""
    # A value in brackets may have several lines; it may be a macro of this text.
    value = r"(\([^()]*\)|\[[^\[\]]*\]|.+)"
    found = re.findall(
        rf"(?m)^\S*(?:DenseReluDense\.activation|mlp_activations) = {value}", text
    )
    macros = dict(re.findall(rf"(?m)^(\w+) = {value}", text))
    values = [_words(macros.get(value.removeprefix("%"), value)) for value in found]
    if any(value != values[0] for value in values):
        raise UserError(
            f"The published gin text has several activations: {values}. All layers of "
            "a T5 have the same one here."
        )
    return values[0] if values else []


def _words(value):
    """The strings of a gin value, a list."""
    value = _literal(value, None)
    value = (value,) if isinstance(value, str) else value
    if not isinstance(value, (list, tuple)) or any(type(x) is not str for x in value):
        raise UserError(
            "The activations in the published gin text must be strings, or a macro "
            f"that the text sets to them. Received: {value!r}"
        )
    return list(value)


def _literal(value, default):
    """A gin value that is a literal of Python, else `default`."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return default
