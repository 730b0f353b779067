"""What T5's kin have in common, whoever published them: their sizes as a gin file."""

import ast
import itertools
import re
from typing import NamedTuple

from remixer_tf.weights.names import find_name

# What other libraries call an activation: what we do (`get_activation`).
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "swish": "silu",
    "silu": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}


class T5(NamedTuple):
    """Sizes and choices of a T5.

    Attributes:
        vocab_size, d_model, d_kv, d_ff, num_heads, num_encoder_layers,
        num_decoder_layers: ints.
        gated: bool, whether the feed-forward layer is T5.1.1's.
        activation: str, see `get_activation`.
        tied_logits: bool, see `EncoderDecoder`.
        num_buckets, max_distance: ints, see `RelativePositionBias`.
        epsilon: float, of the norms.
        dropout_rate: float.
    """

    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_heads: int
    num_encoder_layers: int
    num_decoder_layers: int
    gated: bool
    activation: str
    tied_logits: bool
    num_buckets: int = 32
    max_distance: int = 128
    epsilon: float = 1e-6
    dropout_rate: float = 0.1

    def gin(self):
        """The model as gin text."""
        architecture = "t5_1_1" if self.gated else "t5_1_0"
        feed_forward = "GatedFeedForward" if self.gated else "FeedForward"
        lines = [
            f"include 'architectures/{architecture}.gin'",
            *(
                f"{name.upper()} = {getattr(self, name)!r}"
                for name in (
                    "vocab_size",
                    "d_model",
                    "d_kv",
                    "d_ff",
                    "num_heads",
                    "num_encoder_layers",
                    "num_decoder_layers",
                    "dropout_rate",
                )
            ),
            f"EncoderDecoder.tied_logits = {self.tied_logits}",
            f"{feed_forward}.activation = {self.activation!r}",
            f"RelativePositionBias.num_buckets = {self.num_buckets}",
            f"RelativePositionBias.max_distance = {self.max_distance}",
            "TransformerStack.norm = @RMSNorm",
            f"RMSNorm.epsilon = {self.epsilon!r}",
        ]
        return "\n".join(lines)


def t5_from_shapes(shapes, rows, text):
    """The sizes of a T5, from the shapes of its weights.

    Args:
        shapes: {name: shape} of the published arrays.
        rows: their table, see `weights.names`.
        text: str, the gin text that was published with them, which tells activations
            and dropout; "" if there is none, which stands for T5's own: relu, or gelu
            in the gated layer.

    Returns:
        a `T5`.

    Raises:
        ValueError: these are not the weights of a T5, or text and shapes disagree.
    """

    def shape(path):
        name, _ = find_name(path, rows)
        if name not in shapes:
            raise ValueError(
                f"There is no {name}, which every T5 has. Found: "
                f"{', '.join(sorted(shapes)[:10])}."
            )
        return shapes[name]

    def has(path):
        return find_name(path, rows)[0] in shapes

    def num_layers(stack):
        numbers = itertools.count()
        norm = "{}/layer_{}_self_attention/norm/scale"
        return next(n for n in numbers if not has(norm.format(stack, n)))

    feed_forward = "encoder/layer_0_feed_forward/feed_forward/{}/kernel"
    gated = has(feed_forward.format("wi_0"))
    activations = _activations(text) or (["gelu", "linear"] if gated else ["relu"])
    if len(activations) != 1 + gated or activations[1:] not in ([], ["linear"]):
        raise ValueError(
            f"The published gin text has the activations {activations}, but the "
            f"feed-forward layers have {1 + gated} input matrices. Expected: one "
            "activation for each, of two the second 'linear'."
        )
    if activations[0] not in ACTIVATIONS:
        raise ValueError(
            f"The activation {activations[0]!r} is not known here. Known: "
            f"{', '.join(ACTIVATIONS)}."
        )
    vocab_size, d_model = shape("token_embedding/embeddings")
    num_heads, num_buckets = shape("encoder/position_bias/rel_embedding")
    inner = shape("encoder/layer_0_self_attention/self_attention/query/kernel")[-1]
    dropout = re.search(r"(?im)^dropout_rate = ([\d.]+)$", text)
    return T5(
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
        dropout_rate=float(dropout[1]) if dropout else 0.1,
    )


def _activations(text):
    """The activations that Mesh TensorFlow's or T5X's gin text names, a list."""
    found = re.findall(
        r"(?m)^\S*(?:DenseReluDense\.activation|mlp_activations) = (.+)$", text
    )
    values = [ast.literal_eval(value) for value in found]
    values = [[v] if isinstance(v, str) else list(v) for v in values]
    if any(value != values[0] for value in values):
        raise ValueError(
            f"The published gin text has several activations: {values}. The layers of "
            "one T5 have the same here."
        )
    return values[0] if values else []
