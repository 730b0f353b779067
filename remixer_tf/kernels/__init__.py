"""Functions tuned for one kind of processor, each in a module of its own.

A kernel stands next to a plain reference: `reference`, or an operation of Keras that
its docstring names. The docstring gives the devices it is chosen for and what it gains
there, with command, machine and date. A gain under 10% of a training step or of
decoding makes no kernel: the layer computes the plain form.
"""

import keras


def on_cpu():
    """Whether Keras computes on CPUs, as it does where there is no accelerator."""
    return keras.distribution.list_devices()[0].startswith("cpu")
