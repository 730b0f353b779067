"""The train step on JAX, a pure function. It needs no TensorFlow."""

from typing import NamedTuple

import jax
import keras
from jax import lax
from jax import numpy as jnp

from remixer_tf.models.adapters import check_trains
from remixer_tf.objectives.batches import (
    count_throughput,
    scorable,
    targets_and_weights,
)
from remixer_tf.objectives.objective import Objective, reports, unused_variables
from remixer_tf.optimizers.options import check_optimizer


class State(NamedTuple):
    """Lists of arrays that a step changes, in the order of Keras' variables."""

    trainable: list
    non_trainable: list  # with random states
    optimizer: list  # slots and the count of iterations
    loss_scale: list  # of `LossScale.variables`; empty if nothing is scaled


class JaxTrainStep:
    """Several optimizer steps as a function of a state, to be compiled as a whole.

    See `Engine.step` for objective, skipped steps and sums. They count the global
    batch, on any number of devices. Its parts are the micro-batches. A step that is
    skipped changes the states of random generators only, as on TensorFlow.

    Args:
        model: a built `keras.Model`.
        optimizer: a `keras.optimizers.Optimizer`. It is built here if necessary.
        objective: the `Objective`; None for its defaults.
        constrain: a function that constrains how devices share a micro-batch, a
            dictionary of arrays [rows, ...]; None for one device.
        loss_scale: the `LossScale`; None scales nothing.
    """

    def __init__(
        self, model, optimizer, objective=None, constrain=None, loss_scale=None
    ):
        check_optimizer(optimizer)
        check_trains(model)
        self._model = model
        self._optimizer = optimizer
        self.objective = objective or Objective()
        self._constrain = constrain or (lambda part: part)
        self._loss_scale = loss_scale
        optimizer.build(model.trainable_variables)

    def variables(self):
        """Returns the `State` of Keras variables, for their values and paths."""
        return State(
            self._model.trainable_variables,
            self._model.non_trainable_variables,
            self._optimizer.variables,
            self._loss_scale.variables if self._loss_scale else [],
        )

    def train_steps(self, state, superbatch, stop):
        """Takes a step for each index of the leading axis: (new `State`, sums).

        See `Engine.step`; `stop` is float32 [devices].
        """
        state, sums = lax.scan(self._step, State(*state), superbatch)
        sums = {key: jnp.sum(value, axis=0) for key, value in sums.items()}
        return state, {**sums, "stop": jnp.sum(stop)}

    def _step(self, state, batch):
        """One step, for `lax.scan`."""
        batch = scorable(batch, self._model)
        _, weights = targets_and_weights(batch)
        weight = jnp.sum(weights.astype("float32"))
        slots = zip(self._optimizer.variables, state.optimizer, strict=True)
        with keras.StatelessScope(slots):
            learning_rate = jnp.asarray(self._optimizer.learning_rate, "float32")
        compute = self._part if self.objective.micro_batches == 1 else self._parts
        scale = state.loss_scale[0] if self._loss_scale else None
        sums, gradients, non_trainable = compute(
            state.trainable, state.non_trainable, batch, weight, scale
        )
        if scale is not None:
            gradients = [gradient / scale for gradient in gradients]
        norm = global_norm(gradients)
        if (most := self.objective.clip_norm) is not None:
            scale = most / jnp.maximum(norm, most)
            gradients = [gradient * scale for gradient in gradients]
        trainable, optimizer = self._optimizer.stateless_apply(
            state.optimizer, gradients, state.trainable
        )
        objective = sums["objective"]
        finite = jnp.isfinite(norm) & jnp.isfinite(objective)
        updated = finite & (weight > 0)

        def keep(new, old):
            return jax.tree.map(lambda n, o: jnp.where(updated, n, o), new, old)

        sums |= {
            "weight": weight,
            "tokens": count_throughput(batch),
            "learning_rate": learning_rate,
            "gradient_norm": norm,
        }
        sums = {key: jnp.where(updated, value, 0.0) for key, value in sums.items()}
        sums |= {
            "steps": jnp.float32(1),
            "updates": updated.astype("float32"),
            "skipped": 1 - finite.astype("float32"),
        }
        loss_scale = state.loss_scale
        if self._loss_scale is not None:
            loss_scale, overflowed = self._loss_scale.after(
                loss_scale, updated, finite, objective
            )
            sums["overflowed"] = overflowed.astype("float32")
            sums["skipped"] -= sums["overflowed"]
        state = State(
            keep(trainable, state.trainable),
            non_trainable,
            keep(optimizer, state.optimizer),
            loss_scale,
        )
        return state, sums

    def _parts(self, trainable, non_trainable, batch, weight, scale):
        """Returns what `_part` does, added up over the micro-batches."""
        parts = {
            key: value.reshape(self.objective.micro_batches, -1, *value.shape[1:])
            for key, value in batch.items()
        }

        def add(carry, part):
            totals, non_trainable = carry
            part = self._constrain(part)
            sums, gradients, non_trainable = self._part(
                trainable, non_trainable, part, weight, scale
            )
            totals = jax.tree.map(jnp.add, totals, gradients)
            return (totals, non_trainable), sums

        carry = [jnp.zeros_like(value) for value in trainable], non_trainable
        (gradients, non_trainable), sums = lax.scan(add, carry, parts)
        sums = {key: jnp.sum(value, axis=0) for key, value in sums.items()}
        return sums, gradients, non_trainable

    def _part(self, trainable, non_trainable, batch, weight, scale):
        """Returns sums, gradients and random states of one part of the batch."""
        variables, reached = self.variables(), set()

        def objective(trainable):
            trainable = [
                _note(value, reached, variable.path)
                for value, variable in zip(trainable, variables.trainable, strict=True)
            ]
            mapping = [
                *zip(variables.trainable, trainable, strict=True),
                *zip(variables.non_trainable, non_trainable, strict=True),
            ]
            with keras.StatelessScope(mapping, collect_losses=True) as scope:
                with reports(self._model) as reported:
                    outputs = self.objective.forward(self._model)(batch)
                share = 1.0 / self.objective.micro_batches
                value, sums = self.objective.of_part(
                    outputs, batch, reported, weight, share
                )
            states = [scope.get_current_value(v) for v in variables.non_trainable]
            return value if scale is None else value * scale, (sums, states)

        gradient = jax.grad(objective, has_aux=True)
        gradients, (sums, states) = gradient(trainable)
        unused = [v.path for v in variables.trainable if v.path not in reached]
        if unused:
            raise unused_variables(unused)
        return sums, gradients, states


def global_norm(arrays):
    """Returns the Euclidean norm of all elements, a float32 scalar."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(x.astype("float32"))) for x in arrays))


def _note(value, reached, name):
    """Returns the value. Adds the name if a gradient reaches it: others are zeros."""

    @jax.custom_vjp
    def identity(value):
        return value

    def backward(_, gradient):
        reached.add(name)
        return (gradient,)

    identity.defvjp(lambda value: (value, None), backward)
    return identity(value)
