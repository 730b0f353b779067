"""Names of the axes of variables, and tensors that the devices of a mesh share.

A layout splits variables over a mesh of devices by these names, given where a variable
is made. A variable without names is whole on every device.

Source: Mesh TensorFlow's named dimensions (Shazeer et al. 2018, "Mesh-TensorFlow: Deep
Learning for Supercomputers", section 3); flaxformer's `param_with_axes`.
"""

import contextlib
import contextvars
from typing import Any

import keras

from remixer_tf.errors import UserError

# Names and what they mean. A module of one's own may add to them.
DIMENSIONS = {
    "batch": "the examples of a batch",
    "d_model": "the width of the residual stream",
    "d_ff": "the hidden units of feed-forward layers, gMLP and Remixer blocks",
    "heads": "the heads of an attention, with their queries, keys and values",
    "vocab": "the pieces of the vocabulary",
    "experts": "the experts of a mixture (`MoE`)",
    "mixing_heads": "the matrices of a static mixing: heads, or sMLP's spatial experts",
    "ensemble": "nothing here; T5's released rules name it",
}

# The axes of the variables that Keras is making, a function of the variable's name.
_being_made = contextvars.ContextVar("being_made", default=lambda name: None)


def axes_of(variable):
    """Returns the names of a variable's axes: str, or None for one that is never split.

    All are None if the variable has no names. It may be one that Keras is making, whose
    value does not exist yet.
    """
    axes = getattr(variable, "axes", None) or _being_made.get()(variable.name)
    return axes or (None,) * len(variable.shape)


class NamedAxes:
    """Mixin for layers: `add_weight` takes what layouts and exports know of a weight.

    It stands before Keras' class:

        class MyNorm(NamedAxes, keras.layers.Layer):
            def build(self, input_shape):
                self.scale = self.add_weight(shape=input_shape[-1:], axes=(None,))

    `Sublayer` and the other layers of this package have it.
    """

    def add_weight(
        self,
        *args: Any,
        axes: tuple[str | None, ...] | None = None,
        int8_axis: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Makes a weight, a `keras.Variable`.

        Args:
            *args, **kwargs: see `keras.layers.Layer.add_weight`.
            axes: tuple with a name of `DIMENSIONS` for each axis, or None for an axis
                that is never split: it is small, the devices do not divide it, or it
                is the d_model of a vector, which would be gathered at every use and
                save nothing. In `[d_model, d_model]` only one axis has the name.
                Without the argument, no axis is split. Unknown names are a ValueError,
                and another number of them than axes.
            int8_axis: int, the axis along which numbers share a scale where a file
                holds the weight in 8 bits, see `remixer_tf.serving.int8`. None keeps it
                float32 there: it is small, or errors in it grow.
        """
        add_weight = super().add_weight
        if axes is None:
            variable = add_weight(*args, **kwargs)
        else:
            variable = make_named(add_weight, axes, *args, **kwargs)
        variable.int8_axis = int8_axis
        return variable


def make_named(make, axes, *args, **kwargs):
    """Makes a variable whose axes have names: `make(*args, **kwargs)`.

    `make` makes one, such as the `add_variable` of a `keras.optimizers.Optimizer`. For
    `axes` and errors see `NamedAxes.add_weight`.
    """
    with _making(lambda name: axes):
        variable = make(*args, **kwargs)
    return _name(variable, axes)


def build_named(layer, input_shape, **axes):
    """Builds one of Keras' own layers and names the axes of its weights.

    For example `build_named(dense, (None, 8), kernel=("d_model", "d_ff"))`. A layer
    that is built otherwise has weights without names. For the axes and errors see
    `NamedAxes.add_weight`; a name that no weight has is a ValueError too.
    """
    with naming(layer, **axes):
        layer.build(input_shape)


@contextlib.contextmanager
def naming(layer, **axes):
    """Names the axes of weights that a layer makes in the block; see `build_named`."""
    with _making(axes.get):
        yield
    for name in axes:
        weights = [variable for variable in layer.variables if variable.name == name]
        if not weights:
            raise UserError(
                f"Layer '{layer.path}' has no weight {name!r}, whose axes are named. "
                f"It has: {', '.join(variable.name for variable in layer.variables)}"
            )
        for variable in weights:
            _name(variable, axes[name])


@contextlib.contextmanager
def _making(axes):
    """Tells `axes_of` the names while Keras makes variables and places them."""
    token = _being_made.set(axes)
    try:
        yield
    finally:
        _being_made.reset(token)


def _name(variable, axes):
    known = {None, *DIMENSIONS}
    if not isinstance(axes, tuple) or not known.issuperset(axes):
        raise UserError(
            f"axes is a tuple of names among {', '.join(DIMENSIONS)}, or None for an "
            f"axis that is never split. Received: axes={axes!r} for {variable.path}"
        )
    if len(axes) != len(variable.shape):
        raise UserError(
            f"axes has a name, or None, for each axis. Received: axes={axes!r} for "
            f"{variable.path}, of shape {list(variable.shape)}"
        )
    variable.axes = axes
    return variable


def is_shared():
    """Whether Keras has a distribution, which says how devices share tensors."""
    return keras.distribution.distribution() is not None


def share(layer, name, x):
    """Has devices share a tensor x as Keras' distribution says, if there is one.

    Numbers move between devices and keep their values. The built layer computes x. The
    distribution is asked for "<path of the layer>/<name>", as Keras asks it for the
    "<path>/output" of layers. Returns x.
    """
    if not is_shared():
        return x
    layout = keras.distribution.distribution().get_tensor_layout(f"{layer.path}/{name}")
    return x if layout is None else keras.distribution.distribute_tensor(x, layout)
