"""Image classifiers over any stack."""

from typing import Annotated, Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import (
    Batch,
    Factory,
    PositiveInt,
    Shape,
    Tensor,
    checked,
    one_of,
)
from remixer_tf.errors import UserError
from remixer_tf.layers.axes import NamedAxes
from remixer_tf.layers.base import Context, dense
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.layers.patches import PatchEmbedding
from remixer_tf.models.keras_model import KerasModel
from remixer_tf.objectives.batches import check_batch

POOLS = ("cls", "token", "gap")
Pool = Annotated[str, one_of(POOLS)]


@checked
def num_tokens(
    image_size: PositiveInt, patch_size: PositiveInt, pool: Pool = "cls"
) -> int:
    """The length of the sequence that an `ImageClassifier`'s stack sees, an int.

    One token per patch, and one more for a class token. Args: see `ImageClassifier`.
    """
    return (image_size // patch_size) ** 2 + (pool != "gap")


class ImageClassifier(NamedAxes, KerasModel):
    """Images in, logits of the classes out (gMLP, section 3).

    Patches become tokens, the stack mixes them, and of its normalised output

    - "cls" takes a learned class token, put before the patches, through
      `tanh(x W + b)` (ViT's protocol, the parameter counts of gMLP's Table 1);
    - "token" takes the class token as it is (DeiT);
    - "gap" takes the mean over the patches (MLP-Mixer).

    Logits are float32.

    Args:
        stack: a factory that takes `name`, `dtype`, `causal`, here False, and
            `max_length`, the number of tokens, and returns a `TransformerStack`.
        image_size: int, height and width in pixels.
        patch_size: int, side of a patch; it divides the image's.
        d_model: int.
        num_classes: int.
        pool: str, "cls", "token" or "gap".

    Call arguments:
        batch: dictionary with `images`, float `[batch, image_size, image_size, 3]`.
            Others are ignored.
        training: bool.
        logits: bool. False returns what logits are computed from, float `[batch, 1,
            d_model]`.

    Returns:
        float32 `[batch, 1, num_classes]`.

    Raises:
        ValueError: for an unknown `pool`, a patch size that does not divide the
            image's, or images of another size.
    """

    @checked
    def __init__(
        self,
        stack: Factory,
        image_size: PositiveInt,
        patch_size: int,
        d_model: int,
        num_classes: PositiveInt,
        pool: Pool = "cls",
        **kwargs: Unpack[LayerKeywords],
    ):
        kwargs.setdefault("name", "image_classifier")
        super().__init__(**kwargs)
        self.image_size = image_size
        self.patch_size = patch_size
        self.d_model = d_model
        self.num_classes = num_classes
        self.pool = pool
        self.patch_embedding = PatchEmbedding(
            patch_size, d_model, name="patch_embedding", dtype=self.dtype_policy
        )
        self.stack = stack(
            name="stack",
            dtype=self.dtype_policy,
            causal=False,
            max_length=num_tokens(image_size, patch_size, pool),
        )

    def build(self, input_shape: Shape | None = None) -> None:
        """Makes all variables; no data is needed."""
        self.patch_embedding.build((None, self.image_size, self.image_size, 3))
        length = num_tokens(self.image_size, self.patch_size, self.pool)
        shape = (None, length, self.d_model)
        self.stack.build(shape)
        options = {"axes": ("d_model", None), "use_bias": True}
        if self.pool != "gap":
            self.class_token = self.add_weight(
                name="class_token",
                shape=(1, 1, self.d_model),
                axes=(None, None, None),
                # Not zeros: gMLP adds no position to it, and LayerNorm has no useful
                # gradient at 0.
                initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            )
        if self.pool == "cls":
            d_model, dtype = self.d_model, self.dtype_policy
            self.pre_logits = dense(  # [d_model, d_model]
                "pre_logits", shape, d_model, dtype, activation="tanh", **options
            )
        # [d_model, num_classes]; float32 whatever the compute dtype
        self.logits = dense("logits", shape, self.num_classes, "float32", **options)
        self.built = True

    def batch_spec(self, batch_size: int, feature_lengths: Any) -> dict[str, Any]:
        """See `EncoderDecoder.batch_spec`; images have the model's size."""
        shape = (batch_size, self.image_size, self.image_size, 3)
        return {
            "images": keras.KerasTensor(shape, dtype="float32"),
            "labels": keras.KerasTensor((batch_size, 1), dtype="int32"),
            "label_weights": keras.KerasTensor((batch_size, 1), dtype="float32"),
        }

    def call(self, batch: Batch, training: bool = False, logits: bool = True) -> Tensor:
        check_batch(batch, "images")
        images = batch["images"]
        expected = (self.image_size, self.image_size, 3)
        if tuple(images.shape[1:]) != expected:
            raise UserError(
                f"Model '{self.name}' reads images [batch, "
                f"{', '.join(map(str, expected))}]. Received: {tuple(images.shape)}. "
                "Set IMAGE_SIZE to what the data gives, or crop the data to it."
            )
        x = self.patch_embedding(images)
        if self.pool != "gap":
            token = ops.cast(self.class_token, x.dtype)
            token = ops.broadcast_to(token, (ops.shape(x)[0], 1, self.d_model))
            x = ops.concatenate([token, x], axis=1)
        x, _ = self.stack(x, context=Context(), training=training)
        if self.pool != "gap":
            x = x[:, :1]
        if self.pool == "cls":
            x = self.pre_logits(x)
        elif self.pool == "gap":
            x = ops.mean(ops.cast(x, "float32"), axis=1, keepdims=True)
        return self.logits(x) if logits else x
