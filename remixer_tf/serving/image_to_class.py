"""A trained image classifier with its preprocessing, from images to classes."""

import tensorflow as tf

from remixer_tf.data.augmentation import Seeds
from remixer_tf.data.image_sources import count_pixels, decode_image
from remixer_tf.errors import UserError
from remixer_tf.serving.saved_model import Signatures
from remixer_tf.serving.stored_weights import StoredWeights
from remixer_tf.serving.text_encoder import class_answers

# An image of 4096 x 4096 pixels takes 0.25 GB until it is resized.
MAX_PIXELS = 2**24


def image_to_class(
    run, model_dir, transforms, *, step=None, weights="float32", classes=()
):
    """Restores a checkpoint of a run, see `Run.restore` and `ImageToClass`.

    Returns the `ImageToClass`, and the checkpoint's step, an int.
    """
    engine, step = run.restore(model_dir, step)
    return ImageToClass(engine.model, transforms, weights, classes), step


class ImageToClass(tf.Module):
    """Says the class of images.

    Args:
        model: a built and restored `ImageClassifier`.
        transforms: list of functions that resize, crop and normalize as evaluation
            does, see `remixer_tf.data.augmentation`.
        weights: str, the stored type, see `StoredWeights`.
        classes: list of str, the names of the classes; empty for none.

    Raises a ValueError if there are fewer or more names than classes.
    """

    def __init__(self, model, transforms, weights="float32", classes=()):
        super().__init__(name="image_to_class")
        self.weights = StoredWeights(model, weights)
        if classes and len(classes) != model.num_classes:
            raise UserError(
                f"classes must name the model's {model.num_classes} classes. Received: "
                f"{len(classes)} names."
            )
        self._names = [*classes]
        size = model.image_size
        self._image_spec = tf.TensorSpec([size, size, 3], tf.float32)
        self._model = lambda images: model({"images": images}, training=False)

        def prepare(image):
            image, seeds = tf.cast(image, tf.float32), Seeds(0, 0, 0)
            for transform in transforms:
                image = transform(image, seeds)
            return image

        self._prepare = prepare

    def signatures(self):
        """Returns the `Signatures` of an export.

        - `classify`, also the default: `images`, uint8 `[batch, height, width, 3]`.
        - `classify_bytes`: `image_bytes`, string `[batch]`, JPEG or PNG files of at
          most `MAX_PIXELS` pixels.

        Both return `probabilities`, float32 `[batch, classes]`, and `class_ids`, int32
        `[batch]`, the likeliest. If classes have names, `outputs`, string `[batch]`,
        are theirs.
        """
        pixels = tf.TensorSpec([None, None, None, 3], tf.uint8, name="images")
        files = tf.TensorSpec([None], tf.string, name="image_bytes")

        @tf.function(input_signature=[pixels], autograph=False)
        def classify(images):
            return self._classify(images, self._prepare)

        @tf.function(input_signature=[files], autograph=False)
        def classify_bytes(image_bytes):
            def decode(data):
                pixels = count_pixels(data)
                too_large = tf.strings.join(
                    ["an image of ", tf.strings.as_string(pixels), " pixels"]
                )
                what = tf.where(pixels == 0, "neither a JPEG nor a PNG", too_large)
                most = f". Send one of at most {MAX_PIXELS} pixels."
                message = tf.strings.join(["image_bytes holds ", what, most])
                fits = (0 < pixels) & (pixels <= MAX_PIXELS)
                fits = tf.debugging.Assert(fits, [message])
                with tf.control_dependencies([fits]):
                    return self._prepare(decode_image(tf.identity(data)))

            return self._classify(image_bytes, decode)

        functions = {
            "serving_default": classify,
            "classify": classify,
            "classify_bytes": classify_bytes,
        }
        black = tf.io.encode_png(tf.zeros([32, 32, 3], tf.uint8)).numpy()
        return Signatures(functions, {}, [self.weights], example=black)

    def _classify(self, images, prepare):
        images = tf.map_fn(prepare, images, fn_output_signature=self._image_spec)
        with self.weights.reading():
            logits = self._model(images)
        return class_answers(logits[:, 0], self._names)
