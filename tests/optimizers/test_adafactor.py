"""Adafactor against a NumPy version written from the paper's factored form."""

import copy
import itertools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.optimizers import (
    Adafactor,
    ScheduleFreeAdamW,
    TruncatedRsqrt,
    bert_adamw,
)

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
SHAPES = {
    "tall": (256, 130),
    "wide": (128, 256),
    "narrow": (300, 127),
    "batch_in_the_middle": (256, 4, 200),
    "batch_first": (3, 128, 140),
    "batch_last": (130, 128, 2),
    "vector": (300,),
    "small": (3, 2),
    "scalar": (),
}


class NumpyAdafactor:
    """Float64; keeps the running mean of G^2 as two marginals, or whole.

    For a matrix of non-negative entries with row means r and column means c, the
    paper's rank-one estimate is r c^T / mean(r) (section 3). Batches of matrices are
    handled one matrix at a time.
    """

    def __init__(
        self, value, *, beta_1=0.0, offset=0, clip=1.0, scaled=True, least=128
    ):
        self.value = value.astype("float64")
        self.beta_1, self.offset, self.clip, self.scaled = beta_1, offset, clip, scaled
        sizes = sorted(value.shape, reverse=True)
        self.factored = value.ndim > 1 and sizes[1] >= least
        self.moment = 0.0  # of the updates
        self.rows = self.columns = self.full = 0.0

    def estimate(self, squared, keep):
        if not self.factored:
            self.full = keep * self.full + (1 - keep) * squared
            return self.full
        by_size = np.argsort([-size for size in squared.shape], kind="stable")
        order = [*by_size[2:], *by_size[:2]]  # the two largest axes last
        matrices = np.transpose(squared, order)
        flat = matrices.reshape((-1,) + matrices.shape[-2:])
        self.rows = keep * self.rows + (1 - keep) * np.array([m.mean(1) for m in flat])
        self.columns = keep * self.columns + (1 - keep) * np.array(
            [m.mean(0) for m in flat]
        )
        estimates = [
            np.outer(r, c) / r.mean()
            for r, c in zip(self.rows, self.columns, strict=True)
        ]
        return np.transpose(np.reshape(estimates, matrices.shape), np.argsort(order))

    def update(self, gradient, learning_rate, iteration):
        keep = 1 - max(iteration - self.offset + 1, 1) ** -0.8
        estimate = self.estimate(gradient.astype("float64") ** 2 + 1e-30, keep)
        update = gradient / np.sqrt(estimate)
        if self.clip is not None:
            update = update / max(1.0, np.sqrt(np.mean(update**2)) / self.clip)
        if self.scaled:
            update = update * max(1e-3, np.sqrt(np.mean(self.value**2)))
        update = learning_rate * update
        if self.beta_1:
            self.moment = self.beta_1 * self.moment + (1 - self.beta_1) * update
            update = self.moment
        self.value = self.value - update


def to_numpy(variable):
    return ops.convert_to_numpy(variable.value)


def make_variables(shapes=SHAPES, dtype="float32"):
    rng = np.random.default_rng(0)
    return [
        keras.Variable(rng.normal(0, 0.3, shape), dtype=dtype, name=name)
        for name, shape in shapes.items()
    ]


CASES = [
    ({}, {}, 0),
    ({"step_offset": 1000, "beta_1": 0.5}, {"offset": 1000, "beta_1": 0.5}, 1000),
    ({"beta_1": 0.9}, {"beta_1": 0.9}, 0),
    ({"multiply_by_parameter_scale": False}, {"scaled": False}, 0),
    ({"clipping_threshold": 0.5}, {"clip": 0.5}, 0),
    ({"clipping_threshold": None}, {"clip": None}, 0),
    ({}, {}, 1000),
    ({"step_offset": 10}, {"offset": 10}, 0),
]


@pytest.mark.parametrize(
    ("config", "reference", "first_iteration"),
    [
        *CASES[:2],
        pytest.param(*CASES[2], marks=pytest.mark.slow),
        *(pytest.param(*case, marks=pytest.mark.slower) for case in CASES[3:]),
    ],
)
def test_fifty_steps_equal_numpy(config, reference, first_iteration):
    check_fifty_steps(make_variables(), config, reference, first_iteration)


@pytest.mark.parametrize("shape", [(5, 5, 5), (5, 4, 5), (3, 6, 2, 5)])
def test_of_equal_axes_the_first_are_factored(shape):
    check_fifty_steps(
        make_variables({"w": shape}), {"min_dim_size_to_factor": 4}, {"least": 4}
    )


def compiled_apply(optimizer, variables):
    """`optimizer.apply` as one program, and not one for each operation."""
    if ON_TENSORFLOW:
        import tensorflow as tf

        return tf.function(optimizer.apply, autograph=False)
    import jax

    program = jax.jit(optimizer.stateless_apply)

    def apply(gradients):
        slots = optimizer.variables
        new = program([v.value for v in slots], gradients, [v.value for v in variables])
        for kept, values in zip((variables, slots), new, strict=True):
            for variable, value in zip(kept, values, strict=True):
                variable.assign(value)

    return apply


def check_fifty_steps(variables, config, reference, first_iteration=0):
    references = [NumpyAdafactor(to_numpy(v), **reference) for v in variables]
    optimizer = Adafactor(TruncatedRsqrt(warmup_steps=10), **config)
    optimizer.build(variables)
    optimizer.iterations.assign(first_iteration)
    apply = compiled_apply(optimizer, variables)
    rng = np.random.default_rng(1)
    for iteration in range(first_iteration, first_iteration + 50):
        learning_rate = 1 / np.sqrt(max(iteration, 10))
        gradients = []
        for numpy_version in references:
            shape = numpy_version.value.shape
            gradient = rng.standard_normal(shape, "float32")
            gradient = np.where(gradient < -1, 0, gradient)
            row_scales = np.exp(rng.standard_normal(shape[:1], "float32"))
            gradient = np.float32((gradient.T * row_scales.T).T)
            gradients.append(ops.convert_to_tensor(gradient))
            numpy_version.update(gradient, learning_rate, iteration)
        apply(gradients)
    for variable, numpy_version in zip(variables, references, strict=True):
        np.testing.assert_allclose(
            to_numpy(variable),
            numpy_version.value,
            rtol=1e-4,
            atol=1e-5,
            err_msg=variable.name,
        )


def test_first_update_has_rms_learning_rate_times_parameter_scale():
    variable = keras.Variable(np.full((5,), 2.0), name="w")
    Adafactor(0.1).apply(
        [ops.convert_to_tensor([1.0, -3.0, 1e-3, 7.0, 2.0])], [variable]
    )
    np.testing.assert_allclose(to_numpy(variable), [1.8, 2.2, 1.8, 1.8, 1.8], rtol=1e-6)


def test_zeros_move_by_epsilon_2():
    variable = keras.Variable(np.zeros(4), name="w")
    Adafactor(0.5, epsilon_2=1e-2).apply([ops.ones(4)], [variable])
    np.testing.assert_allclose(to_numpy(variable), -0.5 * 1e-2, rtol=1e-6)


def test_state_of_factored_variables_is_a_row_and_a_column():
    shapes = {
        "embedding": (2048, 512),
        "experts": (4, 512, 1024),
        "rel_embedding": (32, 8),
        "scale": (512,),
    }
    variables = make_variables(shapes)
    optimizer = Adafactor(1e-3)
    before = len(optimizer.variables)
    optimizer.build(variables)
    slots = optimizer.variables[before:]
    expected = (2048 + 512) + 4 * (512 + 1024) + 32 * 8 + 512
    assert sum(np.prod(slot.shape, dtype=int) for slot in slots) == expected
    assert expected < 0.01 * sum(np.prod(shape) for shape in shapes.values())
    assert [tuple(slot.shape) for slot in slots] == [
        (512,), (2048,), (4, 512), (4, 1024), (32, 8), (512,)
    ]  # fmt: skip


def test_the_axes_of_slots_need_no_variable():
    assert Adafactor(beta_1=0.9).slot_axes((32128, 768)) == {
        "first_moment": (0, 1),
        "second_moment_row": (1,),
        "second_moment_column": (0,),
    }
    assert Adafactor().slot_axes((768, 12, 64)) == {"second_moment": (0, 1, 2)}
    assert Adafactor(min_dim_size_to_factor=2).slot_axes((2, 3)) == {
        "second_moment_row": (0,),
        "second_moment_column": (1,),
    }


@pytest.mark.slow_on_jax
def test_slots_and_arithmetic_are_float32_for_bfloat16_variables():
    shapes = {"matrix": (130, 140), "vector": (6,)}
    low, high = make_variables(shapes, "bfloat16"), make_variables(shapes)
    for a, b in zip(low, high, strict=True):
        b.assign(ops.cast(a, "float32"))
    optimizers = [Adafactor(0.1, beta_1=0.5) for _ in range(2)]
    gradients = [ops.convert_to_tensor(v * 0.5 + 1) for v in high]
    gradients = [ops.cast(gradient, "bfloat16") for gradient in gradients]
    for optimizer, variables in zip(optimizers, (low, high), strict=True):
        optimizer.apply(gradients, variables)
    for a, b in zip(low, high, strict=True):
        assert a.dtype == "bfloat16"
        np.testing.assert_allclose(
            ops.convert_to_numpy(ops.cast(a, "float32")),
            to_numpy(b),
            rtol=2**-7,
            atol=1e-3,
        )
    for a, b in zip(*(o.variables[2:] for o in optimizers), strict=True):
        assert a.dtype == "float32"
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=1e-6)


def test_no_slot_is_read_after_it_was_assigned():
    def run(late):
        variables = make_variables({"matrix": (130, 140), "vector": (6,)})
        optimizer = Adafactor(0.1, beta_1=0.5)
        optimizer.build(variables)
        assigned = []
        if late:
            optimizer.assign = lambda slot, value: assigned.append((slot, value))
        for _ in range(3):
            optimizer.apply([ops.sin(v * 9) for v in variables])
            for slot, value in assigned:
                slot.assign(value)
            assigned.clear()
        return [to_numpy(v) for v in variables + optimizer.variables]

    for early, late in zip(run(False), run(True), strict=True):
        np.testing.assert_array_equal(early, late)


def test_zero_and_missing_gradients():
    variables = make_variables({"matrix": (130, 140), "vector": (6,)})
    before = [to_numpy(v) for v in variables]
    optimizer = Adafactor(0.1)
    optimizer.build(variables)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([ops.zeros((130, 140)), None])
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), value)


def test_slot_paths_are_unique_and_the_same_for_a_second_optimizer():
    variables = make_variables()
    optimizers = [Adafactor(beta_1=0.9), Adafactor(beta_1=0.9)]
    paths = []
    for optimizer in optimizers:
        optimizer.build(variables)
        paths.append([v.path for v in optimizer.variables])
    assert paths[0] == paths[1]
    assert len(set(paths[0])) == len(paths[0])
    assert "adafactor/tall_second_moment_row" in paths[0]


@pytest.mark.parametrize("kind", [Adafactor, ScheduleFreeAdamW, bert_adamw])
def test_a_learning_rate_of_numpy(kind):
    assert float(kind(np.float32(0.25)).learning_rate) == 0.25


@pytest.mark.parametrize("learning_rate", [0.25, TruncatedRsqrt(20, multiplier=2.0)])
def test_config_round_trip(learning_rate):
    optimizer = Adafactor(
        learning_rate,
        beta_1=0.8,
        decay_exponent=0.7,
        step_offset=7,
        clipping_threshold=2.0,
        epsilon_2=1e-2,
        min_dim_size_to_factor=32,
        multiply_by_parameter_scale=False,
        weight_decay=0.1,
        clipnorm=3.0,
        name="mine",
    )
    config = keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(copy.deepcopy(config))  # it edits its input
    assert type(again) is Adafactor
    assert keras.optimizers.serialize(again) == config
    np.testing.assert_allclose(
        float(again.learning_rate),
        float(optimizer.learning_rate),
    )


def test_compiled_steps_equal_eager_steps():
    shapes = {"matrix": (130, 140), "vector": (6,)}
    eager, compiled = make_variables(shapes), make_variables(shapes)
    optimizers = [Adafactor(TruncatedRsqrt(2), beta_1=0.5) for _ in range(2)]
    for optimizer, variables in zip(optimizers, (eager, compiled), strict=True):
        optimizer.build(variables)
    for _ in range(4):
        optimizers[0].apply([ops.sin(v * 9) for v in eager])
    if ON_TENSORFLOW:
        import tensorflow as tf

        @tf.function(jit_compile=True)
        def two_steps():
            for _ in tf.range(2):
                optimizers[1].apply([ops.sin(v * 9) for v in compiled])

        two_steps()
        two_steps()
    else:
        import jax

        @jax.jit
        def step(values, state):
            gradients = [ops.sin(v * 9) for v in values]
            return optimizers[1].stateless_apply(state, gradients, values)

        values = [v.value for v in compiled]
        state = [v.value for v in optimizers[1].variables]
        for _ in range(4):
            values, state = step(values, state)
        for variable, value in zip(compiled, values, strict=True):
            variable.assign(value)
        for variable, value in zip(optimizers[1].variables, state, strict=True):
            variable.assign(value)
    pairs = itertools.chain(
        zip(eager, compiled, strict=True),
        zip(optimizers[0].variables, optimizers[1].variables, strict=True),
    )
    for a, b in pairs:
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta_1": 1.0}, r"beta_1 must be in \[0, 1\). Received: beta_1=1.0"),
        ({"decay_exponent": 0}, r"decay_exponent must be in \(0, 1\]"),
        ({"step_offset": -1}, "step_offset must be an integer of at least 0"),
        ({"step_offset": 1.5}, "step_offset must be an integer of at least 0"),
        ({"clipping_threshold": 0.0}, "clipping_threshold must be > 0 or None"),
        ({"epsilon_2": float("nan")}, "epsilon_2 must be > 0"),
        ({"min_dim_size_to_factor": "128"}, "min_dim_size_to_factor must be an int"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"weight_decay": "a"}, "weight_decay must be a number >= 0.*Received: .*'a'"),
        ({"clipnorm": -1}, "clipnorm must be a number >= 0, or None.*clipnorm=-1"),
        ({"beta1": 0.9}, "beta1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Adafactor(**arguments)
