"""Loads TensorFlow, which takes seconds and writes lines of no use."""

import os
import re
import sys
import tempfile

from remixer_tf import console
from remixer_tf.errors import UserError

BACKENDS = ("tensorflow", "jax")
# Lines about TensorFlow's start, and about devices that it does not find.
_OF_NO_USE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog|"
    rb"To enable the following instructions|"
    rb"[IWE]\d{4} .* (port|cudart_stub|cpu_feature_guard|cuda_platform|cuda_executor)"
    rb"\.cc:\d+\]"
)


def load_tensorflow():
    """Imports TensorFlow once, without its lines about missing GPUs.

    A line on standard error says so. Other lines that are written there meanwhile
    follow when TensorFlow is loaded. TF_CPP_MIN_LOG_LEVEL=0, 1 or 2 shows all.
    """
    if "tensorflow" in sys.modules:
        return
    if (backend := os.environ.get("KERAS_BACKEND", "tensorflow")) not in BACKENDS:
        raise UserError(
            f"KERAS_BACKEND must be {' or '.join(BACKENDS)}. Received: {backend!r}"
        )
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


def check_backend(what, backend="tensorflow"):
    """Raises a UserError if Keras runs on another library than `what` needs."""
    import keras  # late: it is slow to import

    if (runs_on := keras.backend.backend()) != backend:
        raise UserError(
            f"{what} needs Keras on {backend}, and it runs on {runs_on}. Set "
            f"KERAS_BACKEND={backend} for it: checkpoints are the same on both."
        )
