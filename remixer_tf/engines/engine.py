"""What the loop asks of the library that runs a model."""

import abc
import contextlib
import os
from typing import NamedTuple

import keras

from remixer_tf.checkpoints.reading import (
    LEARNING_RATE,
    named_variables,
    saved_value,
)
from remixer_tf.errors import UserError


class Cost(NamedTuple):
    """What a step takes, on data of given shapes.

    Attributes:
        flops: int, of this host's matrix products in one step.
        bytes: int, an estimate of a replica's memory: variables, slots, gradients, and
            the largest sum of the tensors alive at once.
    """

    flops: int
    bytes: int


def check_rows(rows, replicas, micro_batches=1):
    """Raises ValueError unless replicas of so many micro-batches divide the rows."""
    parts = replicas * micro_batches
    if rows % parts:
        raise UserError(
            f"A batch of {rows} examples does not divide among {replicas} replicas of "
            f"{micro_batches} micro-batch(es). Set a batch size that is a multiple of "
            f"{parts}."
        )


class Engine(abc.ABC):
    """Builds a model and runs its steps, on one way of distributing them.

    All that depends on the library (TensorFlow, JAX) and its devices is here. The state
    of a run is in the Keras variables of `model` and `optimizer`.

    Attributes:
        host: the `Host` that this process is.
        num_replicas: int, the parts that a batch is computed in, on all hosts.
        model: the built `keras.Model`.
        optimizer: the built `keras.optimizers.Optimizer`.
        checkpoint_format: str, see `Checkpoints`.
    """

    checkpoint_format = "tensorflow"

    @abc.abstractmethod
    def build(self, model, optimizer, dtype_policy, objective=None):
        """Makes model and optimizer where they will run.

        Args:
            model, optimizer: factories, as `train` takes them.
            dtype_policy: str, see `remixer_tf.models.build.build_model`.
            objective: the `Objective`; None for its defaults.

        Raises:
            ValueError: the arguments do not fit each other.
        """

    @abc.abstractmethod
    def build_model(self, model, dtype_policy):
        """Makes the model without an optimizer, for evaluation; see `build`."""

    @abc.abstractmethod
    def step(self, superbatch, stop=False):
        """Runs several optimizer steps.

        The objective of a step is

            J = sum_p objective_p / sum_p weight_p + sum_i c_i (sum_p auxiliary_ip) / P

        over the P parts (replicas and micro-batches) that the global batch is computed
        in. The layers report the auxiliary losses, and statistics, which are such means
        too. A step whose loss or gradient is not finite, or whose batch has no weight,
        changes neither weights nor slots.

        Args:
            superbatch: dictionary of tensors [steps, batch, ...], this host's part,
                with targets as `targets_and_weights` finds them.
            stop: bool, whether this host wants all hosts to stop.

        Returns:
            dictionary of float32 scalars, each a sum over the steps, for
            `summaries.summarize_steps`: those of `Objective.loss_fn`; 'weight', of the
            targets;
            'auxiliary_loss', sum_i above, and 'auxiliary/NAME', each loss before its
            c_i; 'statistics/NAME', of which some are vectors; 'gradient_norm' (global,
            before clipping); 'learning_rate'; 'tokens' (inputs and targets that are not
            padding); 'steps'; 'updates' (steps that changed the weights; the sums above
            leave the others out); 'skipped' (steps that were not finite); and 'stop'
            (over 0 if a host wants to stop).

        Raises:
            ValueError: the batch does not divide among the replicas.
        """

    @abc.abstractmethod
    def compile(self, function, any_rows=False):
        """Compiles a function of a batch that calls the model, for evaluation.

        Args:
            function: takes a dictionary of tensors [rows, ...], and returns a structure
                of tensors that have a leading axis too.
            any_rows: bool, whether the number of rows is unknown while tracing, as in
                `TextToText`: one graph then serves batches of all sizes, and rounds
                alike.

        Returns:
            a function of such a batch that computes with the weights of the moment. It
            returns the structure with NumPy arrays, the replicas' rows one after the
            other. All hosts call it with the same batches, and get all results.
        """

    @contextlib.contextmanager
    def whole_model(self):
        """Yields the model with all of its weights on this host, to be run eagerly.

        All hosts enter it. One of them may use the model alone.
        """
        yield self.model

    def variables(self):
        """Returns {"model" or "optimizer": {path: `keras.Variable`}}, for checkpoints.

        The learning rate is left out: it is as configured, whatever it was before.

        Raises:
            ValueError: two variables share a path.
        """
        slots = named_variables(self.optimizer.variables)
        # The first part is the optimizer's name, which counts up in a process.
        slots = {path.partition("/")[2]: slot for path, slot in slots.items()}
        slots.pop(LEARNING_RATE, None)
        return {"model": named_variables(self.model.variables), "optimizer": slots}

    def values(self):
        """Returns `variables` as arrays that TensorFlow can read on this host.

        All hosts call it. They are valid until the next step.
        """
        return {
            group: {
                path: saved_value(variable, self.to_numpy)
                for path, variable in variables.items()
            }
            for group, variables in self.variables().items()
        }

    def to_numpy(self, variable):
        """Returns what a `keras.Variable` holds, of which this host may have a part.

        All hosts call it.
        """
        return keras.ops.convert_to_numpy(variable)

    @abc.abstractmethod
    def parameter_norm(self):
        """Returns the global norm of the trainable variables, a float."""

    @abc.abstractmethod
    def cost(self, superbatch):
        """Returns the `Cost` of a step on data of these shapes."""

    @abc.abstractmethod
    def matmul_rate(self):
        """Measures the FLOP/s of square products in the compute dtype on this host."""

    @abc.abstractmethod
    def peak_rate(self):
        """Returns the FLOP/s that the makers state for this host's devices, or None."""

    @abc.abstractmethod
    def devices(self):
        """Returns what this host runs on, such as "2 GPU(s)", and how, "XLA on"."""

    @abc.abstractmethod
    def memory(self):
        """Returns {name: gigabytes}, the most that each device has used, if known."""

    def memory_limit(self):
        """Returns the bytes that this host's replicas share; None if unknown."""
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):
            return None
