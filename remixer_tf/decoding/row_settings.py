"""Settings of a search that are inputs of its graph: one graph serves all values.

A batch may have them next to its tokens, one of each row, under the names of `DTYPES`.
They prevail over those that the search was made with.
"""

import copy
import dataclasses

from keras import ops

# Arguments of `decode`, `AnswerLimits`, `Sampling`, `T5Rules` and `HuggingFaceRules`.
# Others make another graph, since they are shapes or leave out operations. `seeds` are
# the `seed_words` of `sample`, `allowed` is an `allowed_table`.
DTYPES = {
    "max_length": "int32",
    "min_length": "int32",
    "repetition_penalty": "float32",
    "temperature": "float32",
    "top_k": "int32",
    "top_p": "float32",
    "alpha": "float32",
    "length_penalty": "float32",
    "seeds": "uint32",
    "allowed": "int32",
}
AXES = {"seeds": 1, "allowed": 2}  # of a row's value; other values are numbers


def with_rows(settings, batch):
    """A dataclass of settings with the rows' own, `[batch]`, in place of constants.

    Others, such as rules of a user's own, stay as they are.
    """
    if not dataclasses.is_dataclass(settings):
        return settings
    settings = copy.copy(settings)
    for field in dataclasses.fields(settings):
        value = of_rows(batch, field.name, getattr(settings, field.name))
        object.__setattr__(settings, field.name, value)
    return settings


def replaced(settings, **values):
    """A dataclass of settings with other values, checked by its `__post_init__`.

    `dataclasses.replace` calls `__init__`, and a user's subclass may have another one.
    """
    settings = copy.copy(settings)
    for name, value in values.items():
        object.__setattr__(settings, name, value)
    if check := getattr(settings, "__post_init__", None):
        check()
    return settings


def of_rows(batch, name, constant):
    """A setting of each row, a tensor `[batch]`; the constant if the batch has none."""
    if name in DTYPES and name in batch:
        return ops.convert_to_tensor(batch[name], DTYPES[name])
    return constant


def column(value, axes=1):
    """A setting of each row with axes behind `batch`; a constant as it is."""
    return value[(..., *[None] * axes)] if ops.is_tensor(value) else value


def pick(x, index):
    """Takes of x, `[batch, n, ..]`, what an index, int32 `[batch, m]`, names."""
    # By rows: along an axis it would be ten operations instead of one.
    rows = flat_rows(index, x.shape[1])
    return ops.take(ops.reshape(x, (-1, *x.shape[2:])), rows, axis=0)


def flat_rows(index, size):
    """Where `[batch * size]` holds what an index `[batch, m]` names of each `size`."""
    examples = ops.arange(ops.shape(index)[0], dtype="int32")
    return examples[:, None] * size + index
