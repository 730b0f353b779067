"""JPEG and PNG files: their header is read before their pixels.

A file of some kilobytes may say that it is an image of gigabytes.
"""

import tensorflow as tf

# ImageNet's largest has 61 million. One of these takes 0.2 GB, as float32 0.8 GB.
MAX_PIXELS = 2**26
_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"
_JPEG = b"\xff\xd8\xff"


def count_pixels(data):
    """Height times width, as the header of a file's content says: an int64.

    It is 0 of what is neither a JPEG nor a PNG. Of a JPEG with a damaged header the op
    fails.
    """
    # Every PNG starts with these 16 bytes; its width and height follow.
    head = tf.strings.substr(data, 0, 24)
    is_png = tf.equal(tf.strings.substr(head, 0, 16), _PNG)
    is_png &= tf.equal(tf.strings.length(head), 24)
    is_jpeg = tf.equal(tf.strings.substr(head, 0, 3), _JPEG)

    def of_png():
        return tf.io.decode_raw(head, tf.int32, little_endian=False)[4:]

    def of_jpeg():
        return tf.image.extract_jpeg_shape(data, tf.int32)[:2]

    def of_others():
        return tf.cond(is_jpeg, of_jpeg, lambda: tf.zeros([2], tf.int32))

    sides = tf.cond(is_png, of_png, of_others)
    return tf.reduce_prod(tf.cast(sides, tf.int64))


def decode_image(data):
    """Decodes a JPEG or PNG: uint8 `[height, width, 3]`. See `count_pixels` first."""
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])
