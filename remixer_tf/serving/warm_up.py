"""Requests that TensorFlow Serving answers before it takes those of users."""

import os

import tensorflow as tf

from remixer_tf.errors import MissingLibraryError


def write_warm_up(folder, signatures, text, batch_sizes):
    """Writes a request of each batch size for each signature into a SavedModel.

    The first answers of a graph are slow. The requests are a TFRecord of
    `PredictionLog`s, `assets.extra/tf_serving_warmup_requests`. Strings in them are
    `text`, bytes, and numbers are 0.

    Raises:
        ImportError: tensorflow-serving-api is not installed.
    """
    predict_pb2, log_pb2 = import_messages()
    path = os.path.join(folder, "assets.extra", "tf_serving_warmup_requests")
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.TFRecordWriter(path) as writer:
        for name, function in signatures.items():
            for size in batch_sizes:
                request = predict_pb2.PredictRequest()
                request.model_spec.name = "default"
                request.model_spec.signature_name = name
                for spec in function.input_signature:
                    # Axes of any length have 32.
                    shape = [size, *(n or 32 for n in spec.shape[1:])]
                    zero = tf.zeros([], spec.dtype)
                    value = tf.fill(shape, text if spec.dtype == tf.string else zero)
                    request.inputs[spec.name].CopyFrom(tf.make_tensor_proto(value))
                log = log_pb2.PredictionLog(
                    predict_log=log_pb2.PredictLog(request=request)
                )
                writer.write(log.SerializeToString())


def import_messages():
    """TensorFlow Serving's modules of requests and of logs.

    Raises:
        ImportError: tensorflow-serving-api is not installed.
    """
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ImportError as error:
        raise MissingLibraryError(
            "Warm-up requests need tensorflow-serving-api. Install it: "
            "pip install 'remixer_tf[serving]'"
        ) from error
    return predict_pb2, prediction_log_pb2
