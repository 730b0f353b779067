"""The interface between the training loop and the library that runs a model."""

import abc
import contextlib
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import seqio

from remixer_tf.checkpoints.reading import (
    LEARNING_RATE,
    model_groups,
    named_variables,
)
from remixer_tf.errors import UserError
from remixer_tf.models.build import machine_memory


class Host(NamedTuple):
    """One of the processes that train together.

    Attributes:
        index: int. Host 0 writes the files that all share.
        count: int, the number of hosts.
        barrier: a function that returns when all hosts have called it.
        shard_info: `seqio.ShardInfo`, the part of the data that this host reads. Others
            may read the same part.
        saves_position: bool, whether this host writes the position in its part.
        gather: a function of an int. It returns the list of all hosts' ints, in the
            order of their indices. All hosts call it.
    """

    index: int = 0
    count: int = 1
    barrier: Callable = lambda: None
    shard_info: seqio.ShardInfo = seqio.ShardInfo(0, 1)
    saves_position: bool = True
    gather: Callable = lambda number: [number]


class Cost(NamedTuple):
    """The cost of a step on data of given shapes."""

    flops: int  # of this host's matrix products and convolutions in one step
    # An estimate of a replica's memory: variables, slots, gradients, and the largest
    # sum of the tensors alive at once.
    bytes: int
    uncounted: tuple = ()  # of str, see `Products`
    rest: int = 0  # FLOPs of other arithmetic of this host in one step


def check_rows(rows, replicas, micro_batches=1):
    """Raises a UserError unless replicas and micro-batches divide the rows evenly."""
    parts = replicas * micro_batches
    if rows % parts:
        raise UserError(
            f"A batch of {rows} examples does not divide among {replicas} replicas of "
            f"{micro_batches} micro-batch(es). Set a batch size that is a multiple of "
            f"{parts}."
        )


def fill_rows(batch, replicas, few=True):
    """Repeats a batch's last row until the replicas can share the rows.

    If `few`, few programs serve all numbers of rows: a replica has 1, 2, 3, 4, 6, 8,
    12, .. rows, powers of two, and halfway between them. Answers to the copies end when
    that of the last row does. Returns a dictionary of arrays.
    """
    rows = len(next(iter(batch.values())))
    own = -(-rows // replicas)
    if few:
        most = 1 << max(own - 1, 0).bit_length()
        fewer = 3 * most // 4
        own = fewer if most > 2 and own <= fewer else most
    wanted = replicas * own
    if rows in (0, wanted):
        return batch
    return {
        name: np.pad(x, [(0, wanted - rows)] + [(0, 0)] * (np.ndim(x) - 1), mode="edge")
        for name, x in batch.items()
    }


def check_float16(dtype_policy, device):
    """Raises a UserError if a device, such as "TPU", has no float16."""
    if device == "TPU" and dtype_policy == "mixed_float16":
        raise UserError(
            "A TPU computes in bfloat16 and not in float16. Received: dtype_policy="
            "'mixed_float16'. Set Run.dtype_policy='mixed_bfloat16'."
        )


class Engine(abc.ABC):
    """Builds a model and runs its steps on the devices.

    An engine holds all code that depends on the library (TensorFlow, JAX) and its
    devices. The Keras variables of `model` and `optimizer` hold the state of a run.

    Attributes:
        host: this process, a `Host`.
        num_replicas: int, the parts of a batch that devices of all hosts compute.
        model: the built `keras.Model`.
        optimizer: the built `keras.optimizers.Optimizer`.
        loss_scale: the `LossScale` under "mixed_float16", else None.
        checkpoint_format: str, see `Checkpoints`.
        answer_programs: int, XLA's programs at most for each shape of what writes
            answers, see `compile`: 2, the second where it repays; 1; or 0, none.
    """

    checkpoint_format = "tensorflow"
    loss_scale = None
    answer_programs = 2

    @abc.abstractmethod
    def build(self, model, optimizer, dtype_policy, objective=None):
        """Makes model and optimizer on the devices.

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

        A global batch is computed in P parts (replicas and micro-batches). The
        objective of a step is

            J = sum_p objective_p / sum_p weight_p + sum_i c_i (sum_p auxiliary_ip) / P

        Layers report auxiliary losses and statistics; statistics are means over the
        parts too. If the loss or a gradient is not finite, or the batch has no weight,
        the step changes neither weights nor slots. Under "mixed_float16" J is
        multiplied by a `LossScale`, and the gradients are divided by it.

        Args:
            superbatch: dictionary of tensors [steps, batch, ...], this host's part.
                `targets_and_weights` finds its targets.
            stop: bool, whether this host wants all hosts to stop.

        Returns:
            dictionary of float32 sums over the steps and all hosts, for
            `summaries.summarize_steps`. All are scalars, except some statistics.

            - The sums of `Objective.loss_fn`, and 'weight', that of the targets.
            - 'auxiliary_loss', sum_i above.
            - 'auxiliary/NAME', each loss before its c_i, and 'statistics/NAME'.
            - 'gradient_norm', global and before clipping, and 'learning_rate'.
            - 'tokens', inputs and targets that are not padding.
            - 'steps', and 'updates', the steps that changed the weights. The sums above
              leave the other steps out.
            - 'skipped', steps that were not finite.
            - 'overflowed', under "mixed_float16", steps with gradients that were not
              finite. They lower the loss scale, and are not in 'skipped'.
            - 'stop', over 0 if a host wants to stop.

        Raises:
            ValueError: the batch does not divide among the replicas.
        """

    @abc.abstractmethod
    def compile(self, function, any_rows=False, xla=None):
        """Compiles a function of a batch that calls the model, for evaluation.

        Args:
            function: takes a dictionary of tensors [rows, ...] and returns a structure
                of tensors with a leading axis.
            any_rows: bool, whether batches may have any number of rows, as questions
                to a `TextToText`, see `fill_rows`. One graph of TensorFlow's then
                serves all numbers. XLA compiles few.
            xla: bool, whether XLA compiles it on TensorFlow; None for what the engine
                does. "answers" is for functions that write texts token after token.
                XLA then compiles them on CPUs too, unless the engine or
                REMIXER_TF_CACHE say no. A function that it cannot compile runs
                without it. Where answers of other lengths make rows wait, it compiles
                them once more, see `compile_search` of `remixer_tf.decoding`.

        Returns:
            a function of a batch that computes with the model's current weights. It
            returns the structure with NumPy arrays, the replicas' rows in order. All
            hosts call it with the same batches and receive all results. Unless
            `any_rows`, it raises a ValueError if the rows do not divide among the
            replicas.
        """

    @abc.abstractmethod
    def takes_xla(self, xla):
        """Returns whether XLA compiles what `compile` is given with this `xla`."""

    @contextlib.contextmanager
    def whole_model(self):
        """Yields the model with all its weights on this host, to run it eagerly.

        All hosts enter it. Then one of them may use the model alone.
        """
        yield self.model

    @contextlib.contextmanager
    def averaged(self):
        """Gives the model its averaged weights (`use_ema`), if any, for a block.

        There are none before the first update. All hosts enter it.
        """
        optimizer = self.optimizer
        if not optimizer.use_ema or not self.to_numpy(optimizer.iterations):
            yield
            return
        weights = self.model.trainable_variables
        own = [keras.ops.copy(weight.value) for weight in weights]
        try:
            optimizer.finalize_variable_values(weights)
            yield
        finally:
            for weight, value in zip(weights, own, strict=True):
                weight.assign(value)

    def variables(self):
        """Returns {group: {path: `keras.Variable`}}, for checkpoints.

        The groups are those of `model_groups`, "optimizer", and if there is one
        "loss_scale". The configuration sets the learning rate, which is left out.
        """
        slots = named_variables(self.optimizer.variables)
        # The first part is the optimizer's name, which counts up in a process.
        slots = {path.partition("/")[2]: slot for path, slot in slots.items()}
        slots.pop(LEARNING_RATE, None)
        groups = {**model_groups(self.model), "optimizer": slots}
        if self.loss_scale is not None:
            groups["loss_scale"] = {v.name: v for v in self.loss_scale.variables}
        return groups

    def to_numpy(self, variable):
        """Returns the whole value of a `keras.Variable`. All hosts call it."""
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
    def peak_rate(self, per_device=None):
        """Returns the peak FLOP/s of this host's devices; None if it is unknown.

        `per_device` is that of one device; None for what its maker states.
        """

    @abc.abstractmethod
    def start_trace(self, folder):
        """Begins to record what host and devices do, in <folder>/plugins/profile."""

    @abc.abstractmethod
    def stop_trace(self):
        """Ends the recording, and writes its files."""

    @abc.abstractmethod
    def mark_step(self, step):
        """Returns a context manager whose block a trace shows as this step."""

    @abc.abstractmethod
    def devices(self):
        """Returns this host's devices as text, such as "2 GPU(s), XLA on"."""

    @abc.abstractmethod
    def memory(self):
        """Returns {name: gigabytes}, the peak memory of each device, if known."""

    def memory_limit(self):
        """Returns the bytes of memory that this host's replicas share, or None."""
        return machine_memory()
