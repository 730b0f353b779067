"""Loading TensorFlow, which takes seconds and says much of no use."""

import os
import re
import sys
import tempfile

from remixer_tf import console
from remixer_tf.errors import UserError

# Lines on TensorFlow's start, and on devices that it does not find.
_OF_NO_USE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog|"
    rb"To enable the following instructions|"
    rb"[IWE]\d{4} .* (port|cudart_stub|cpu_feature_guard|cuda_platform|cuda_executor)"
    rb"\.cc:\d+\]"
)


def load_tensorflow():
    """Imports TensorFlow, unless that has happened, without its lines on absent GPUs.

    It says on standard error that it does. All else that is written there comes when
    TensorFlow is there. TF_CPP_MIN_LOG_LEVEL=0 or 1 or 2 shows all lines.
    """
    if "tensorflow" in sys.modules:
        return
    console.say("loading TensorFlow ...", file=sys.stderr)
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") != "3":
        import tensorflow  # noqa: F401

        return
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            import tensorflow

            tensorflow.config.list_physical_devices()  # It looks for GPUs.
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            for line in held:
                if not _OF_NO_USE.match(line):
                    os.write(2, line)


def check_on_tensorflow(what):
    """Raises a UserError if Keras runs on a library that cannot do `what`."""
    import keras  # late: it is slow to import

    if (backend := keras.backend.backend()) != "tensorflow":
        raise UserError(
            f"{what} needs Keras on TensorFlow, and it runs on {backend}. Unset "
            "KERAS_BACKEND for it: the checkpoint is the same."
        )
