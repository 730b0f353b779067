"""The kind of processor that Keras computes on."""

import keras


def on_cpu():
    """Whether Keras computes on CPUs, as it does where there is no accelerator."""
    return keras.distribution.list_devices()[0].startswith("cpu")
