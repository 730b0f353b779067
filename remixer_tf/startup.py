"""Loads TensorFlow, which takes seconds and writes lines of no use."""

import functools
import json
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
# Settings of keras.json: the values that Keras takes, and the one that layers need.
_KERAS = {
    "floatx": (("float32", "float16", "float64"), "float32"),
    "epsilon": ((), 1e-7),
    "image_data_format": (("channels_last", "channels_first"), "channels_last"),
}


def check_keras():
    """Raises a UserError if Keras, once imported, would fail or run on another library.

    KERAS_BACKEND says on which, else Keras' own file. Returns its name.
    """
    path = _keras_file()
    settings = _keras_settings(path)
    named = "KERAS_BACKEND"
    if not (backend := os.environ.get(named)):
        named, backend = f"the backend in {path}", settings.get("backend", BACKENDS[0])
    if backend not in BACKENDS:
        raise UserError(
            f"{named} must be {' or '.join(BACKENDS)}. Received: {backend!r}. Set "
            f"KERAS_BACKEND={BACKENDS[0]}, which prevails."
        )
    return backend


def _keras_file():
    """Returns the path of Keras' file, as Keras finds it."""
    home = os.path.expanduser("~")
    home = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    path = os.path.join(os.environ.get("KERAS_HOME", home), "keras.json")
    return os.path.expanduser(path)


def _keras_settings(path):
    """Returns the dictionary in Keras' file, {} if there is none that it reads."""
    try:
        with open(path, encoding="utf-8") as file:
            settings = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # As Keras does.
        return {}
    except OSError as error:
        raise UserError(f"Keras cannot read {path}: {error.strerror}.") from None
    reads = isinstance(settings, dict) and all(
        value in choices if choices else isinstance(value, float)
        for name, (choices, used) in _KERAS.items()
        for value in [settings.get(name, used)]
    )
    if not reads:
        raise UserError(
            f"{path} holds what Keras does not take, such as an epsilon without a "
            "decimal point. Remove it: Keras writes it anew."
        )
    return settings


@functools.cache
def set_up_keras():
    """Gives Keras its defaults of what layers read there, whatever its file says.

    It does so once in a process. Values that the program sets itself (`keras.config`)
    stay: one that differs from the file's, and each that it sets later.
    """
    from keras import config  # late: it is slow to import

    settings = _keras_settings(_keras_file())
    for name, (_, value) in _KERAS.items():
        if getattr(config, name)() == settings.get(name, value):
            getattr(config, f"set_{name}")(value)


def load_tensorflow():
    """Imports TensorFlow once, without its lines about missing GPUs.

    A line on standard error says so. Other lines that are written there meanwhile
    follow when TensorFlow is loaded. TF_CPP_MIN_LOG_LEVEL=0, 1 or 2 shows all.
    """
    check_keras()
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


def check_backend(what, backend="tensorflow"):
    """Raises a UserError if Keras runs on another library than `what` needs."""
    import keras  # late: it is slow to import

    if (runs_on := keras.backend.backend()) != backend:
        raise UserError(
            f"{what} needs Keras on {backend}, and it runs on {runs_on}. Set "
            f"KERAS_BACKEND={backend} for it: checkpoints are the same on both."
        )
