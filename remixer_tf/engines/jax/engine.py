"""The engine on JAX: one compiled program on the devices of a mesh."""

import contextlib
import math

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from remixer_tf import programs
from remixer_tf.engines.device_rates import matmul_rate, peak_rate
from remixer_tf.engines.engine import (
    Cost,
    Engine,
    Host,
    check_float16,
    check_rows,
    fill_rows,
)
from remixer_tf.engines.jax.layout import Layout
from remixer_tf.errors import UserError, check_choices
from remixer_tf.models.build import build_model
from remixer_tf.models.stack import TransformerStack
from remixer_tf.objectives.batches import targets_and_weights
from remixer_tf.optimizers.loss_scale import loss_scale_for
from remixer_tf.optimizers.options import make_optimizer
from remixer_tf.startup import check_backend

CHECKPOINT_FORMATS = ("tensorflow", "orbax")

if keras.backend.backend() == "jax":  # On TensorFlow gin reads the signature alone.
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from remixer_tf.engines.jax.compiler_options import compiler_options
    from remixer_tf.engines.jax.flops import product_flops, program_bytes
    from remixer_tf.engines.jax.placement import placed, shared
    from remixer_tf.engines.jax.processes import connect, gather, put, this_host
    from remixer_tf.engines.jax.step import JaxTrainStep, State, global_norm

    # TensorFlow reads the data, and would take the memory of all GPUs. This works only
    # before TensorFlow starts.
    tf.config.set_visible_devices([], "GPU")


class JaxEngine(Engine):
    """Runs a model by JAX, several steps in one program on a mesh of devices.

    Mesh and rules change results by rounding only: a batch is the global one, and
    dropout's masks stay the same.

    Args:
        mesh_shape, layout_rules: str, see `Layout`. "" runs on one device.
        checkpoint_format: 'tensorflow' or 'orbax'. Both are read on any mesh and by
            either engine. With 'tensorflow' each host gathers the whole state and host
            0 writes. With 'orbax' each device's part is written where it is.
        distributed: dictionary, the arguments of `connect` for several processes that
            train together; None for this process alone.
        barrier_seconds: how long a process waits for the others at checkpoints and
            evaluations.

    Raises:
        ValueError: Keras runs on another library, the mesh has more devices than there
            are, the format is unknown, or see `Layout`, `connect` and `data_shards`.
    """

    def __init__(
        self,
        mesh_shape="",
        layout_rules="",
        checkpoint_format="tensorflow",
        distributed=None,
        barrier_seconds=600,
    ):
        name = "JaxEngine.checkpoint_format"
        check_choices(CHECKPOINT_FORMATS, **{name: checkpoint_format})
        self.checkpoint_format = checkpoint_format
        check_backend("JaxEngine", "jax")
        programs.find_jax(jax.config)
        self._layout = Layout(mesh_shape, layout_rules)
        self.num_replicas = self._layout.num_batch_parts
        axes = self._layout.axes or {"data": 1}
        if distributed is None:
            self.host = Host()
            self._mesh = make_mesh(axes, jax.local_devices())
        else:
            connect(**distributed)
            self._mesh = make_mesh(axes, jax.devices())
            self.host = this_host(self._of_batch(), self.num_replicas, barrier_seconds)
        self._everywhere = self._sharding()
        self._programs = {}  # shapes of a superbatch -> program, Cost

    def build(self, model, optimizer, dtype_policy, objective=None):
        self.build_model(model, dtype_policy)
        if self._mesh.devices.flat[0].platform == "cpu":
            _warn_of_remat(self.model)
        with placed(lambda scalar: self._everywhere):
            self.optimizer = make_optimizer(optimizer)
            self.loss_scale = loss_scale_for(dtype_policy)
        self._compute_dtype = keras.DTypePolicy(dtype_policy).compute_dtype
        partition = self._layout.slot_partition(self.model)

        def of_slot(slot):
            return self._sharding(*partition(slot))

        def constrain(part):
            return jax.lax.with_sharding_constraint(part, self._of_batch())

        with placed(of_slot):
            self._train_step = JaxTrainStep(
                self.model, self.optimizer, objective, constrain, self.loss_scale
            )
        trainable, non_trainable, slots, scale = self._train_step.variables()
        of_variables = self._of_variables()
        self._of_state = State(
            [of_variables[variable.path] for variable in trainable],
            [of_variables[variable.path] for variable in non_trainable],
            [*map(of_slot, slots)],
            [self._everywhere] * len(scale),
        )

    def build_model(self, model, dtype_policy):
        check_float16(dtype_policy, self._mesh.devices.flat[0].platform.upper())
        # Each variable is split when it is made: no device holds them all.
        with placed(self._of_new):
            self.model = build_model(model, dtype_policy)

    def step(self, superbatch, stop=False):
        program, _ = self.program(superbatch)
        state, sums = program(*self._arguments(superbatch, stop))
        variables = self._train_step.variables()
        jax.tree.map(lambda variable, value: variable.assign(value), variables, state)
        # This process's copy, with which it can compute alone.
        return jax.tree.map(lambda value: value.addressable_data(0), sums)

    def _arguments(self, superbatch, stop=False):
        """The program's arguments, on the devices."""
        state = jax.tree.map(lambda v: v.value, self._train_step.variables())
        stop = np.full(self._mesh.local_mesh.size, stop, "float32")
        of_parts = jax.make_array_from_process_local_data
        rows = self._of_batch(1)
        return (
            put(state, self._of_state),
            {key: of_parts(rows, np.asarray(x)) for key, x in superbatch.items()},
            of_parts(self._sharding(self._mesh.axis_names), stop),
        )

    def _sharding(self, *axes):
        """The sharding of an array whose dimensions are split over these mesh axes."""
        return NamedSharding(self._mesh, PartitionSpec(*axes))

    def _of_batch(self, leading_axes=0):
        """The sharding of a batch, whose rows follow some leading axes."""
        rows = self._layout.batch_axes or None
        return self._sharding(*[None] * leading_axes, rows)

    def _of_new(self, variable):
        """The sharding of a model's variable that Keras is making."""
        try:
            axes = self._layout.partition(variable)
        except ValueError:  # `partitions` raises it when the heads are known.
            axes = ()
        return self._sharding(*axes)

    def _of_variables(self):
        """Returns {path: sharding} of the model's variables."""
        partitions = self._layout.partitions(self.model)
        return {path: self._sharding(*axes) for path, axes in partitions.items()}

    def _shared_tensors(self):
        """Returns {expression of a path: sharding} of tensors that layers compute.

        If a rule splits weights over the batch's axis too (fully sharded parameters),
        the compiler then gathers the weights and not the batch.
        """
        if self._mesh.size == 1:
            return {}
        batch, experts = self._layout.batch_axes, self._layout.axis("experts")
        others = tuple(axis for axis in batch if axis != experts)
        return {
            # The outputs of a stack's sublayers.
            r".*/layer_\d+_[^/]+/output": self._of_batch(),
            # Mixtures of experts: [groups, ..], then [experts, rows of groups, ..].
            ".*/groups": self._of_batch(),
            ".*/rows_of_groups": self._of_batch(1),
            ".*/rows_of_experts": self._sharding(experts, others or None),
            # gMLP's projection: [d_model, 2, half of d_ff].
            ".*/halves": self._sharding(None, None, self._layout.axis("d_ff")),
        }

    def program(self, superbatch):
        """Returns the compiled program for data of these shapes, and its `Cost`."""
        shapes = tuple((k, tuple(v.shape)) for k, v in sorted(superbatch.items()))
        if shapes not in self._programs:
            steps, rows = targets_and_weights(superbatch)[0].shape[:2]
            rows *= self.host.shard_info.num_shards
            parts = self._train_step.objective.micro_batches
            check_rows(rows, self.num_replicas, parts)
            program = jax.jit(
                self._train_step.train_steps,
                donate_argnums=0,
                compiler_options=compiler_options(),
                out_shardings=(self._of_state, self._everywhere),
            )
            arguments = self._arguments(superbatch)
            with shared(self._shared_tensors()):
                traced = program.trace(*arguments)
            compiled = traced.lower().compile()
            products = product_flops(traced.jaxpr.jaxpr)
            cost = Cost(
                flops=products.flops // steps // self.host.count,
                bytes=program_bytes(compiled),
                uncounted=products.uncounted,
                rest=products.rest // steps // self.host.count,
            )
            self._programs[shapes] = compiled, cost
        return self._programs[shapes]

    def takes_xla(self, xla):
        return True

    def compile(self, function, any_rows=False, xla=None):
        variables = self.model.variables
        shardings = list(self._of_variables().values())

        @jax.jit
        def program(values, batch):
            with keras.StatelessScope(zip(variables, values, strict=True)):
                return function(batch)

        def call(batch):
            batch = {key: np.asarray(x) for key, x in batch.items()}
            rows = len(next(iter(batch.values())))
            if any_rows:
                batch = fill_rows(batch, self.num_replicas)
            else:
                check_rows(rows, self.num_replicas)
            values = put([v.value for v in variables], shardings)
            batch = put(batch, dict.fromkeys(batch, self._of_batch()))
            with shared(self._shared_tensors()):
                results = program(values, batch)
            return jax.tree.map(lambda x: gather(x)[:rows], results)

        return call

    @contextlib.contextmanager
    def whole_model(self):
        if self.host.count == 1:
            yield self.model
            return
        whole = [(v, self.to_numpy(v)) for v in self.model.variables]
        with keras.StatelessScope(whole):
            yield self.model

    def to_numpy(self, variable):
        return gather(variable.value)

    def parameter_norm(self):
        values = [variable.value for variable in self.model.trainable_variables]
        return float(gather(jax.jit(global_norm)(values)))

    def cost(self, superbatch):
        return self.program(superbatch)[1]

    def matmul_rate(self):
        accelerator = jax.default_backend() != "cpu"
        # Devices that XLA makes of one CPU share its cores.
        devices = self._mesh.local_mesh.size if accelerator else 1
        return devices * matmul_rate(self._compute_dtype, accelerator)

    def peak_rate(self, per_device=None):
        devices = self._mesh.local_mesh.devices
        kind = devices.flat[0].device_kind
        rate = per_device or peak_rate(kind, self._compute_dtype)
        return rate and rate * devices.size

    def start_trace(self, folder):
        jax.profiler.start_trace(folder)

    def stop_trace(self):
        jax.profiler.stop_trace()

    def mark_step(self, step):
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def devices(self):
        devices = self._mesh.local_mesh.devices.flat
        mesh = ",".join(f"{axis}:{size}" for axis, size in self._mesh.shape.items())
        return f"{len(devices)} {devices[0].device_kind}(s), JAX, mesh {mesh}"

    def memory(self):
        peaks = {
            f"{device.platform}_{device.local_hardware_id}": stats["peak_bytes_in_use"]
            for device, stats in self._memory_stats()
        }
        return {f"{name}_memory": peak / 1e9 for name, peak in peaks.items()}

    def memory_limit(self):
        limits = [stats["bytes_limit"] for _, stats in self._memory_stats()]
        return sum(limits) or super().memory_limit()

    def _memory_stats(self):
        """Yields (device, its dictionary); CPUs have none."""
        for device in self._mesh.local_mesh.devices.flat:
            if stats := device.memory_stats():
                yield device, stats


def make_mesh(axes, there):
    """Returns the mesh of axes {name: size} over the first devices.

    Raises a ValueError if there are too few, or if several processes have devices and
    the mesh leaves some out.
    """
    needed = math.prod(axes.values())
    processes = {device.process_index for device in there}
    if needed < len(there) and len(processes) > 1:
        raise UserError(
            f"The mesh {axes} has {needed} device(s), and the {len(processes)} "
            f"processes have {len(there)}. Choose a JaxEngine.mesh_shape of all of "
            "them, or set JaxEngine.distributed=None for this process alone."
        )
    if needed > len(there):
        raise UserError(
            f"The mesh {axes} has {needed} devices, and here are {len(there)}, of "
            f"{there[0].device_kind}. Choose another JaxEngine.mesh_shape. (CPUs count "
            "as so many with XLA_FLAGS=--xla_force_host_platform_device_count=N. "
            "`remixer_tf costs --layout=FILE` counts what each device would hold.)"
        )
    return jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        (AxisType.Auto,) * len(axes),
        devices=there[:needed],
    )


def _warn_of_remat(model):
    stacks = [x for x in model._flatten_layers() if isinstance(x, TransformerStack)]
    if any(stack.remat and not stack.scan for stack in stacks):
        logging.warning(
            "TransformerStack.remat saves hardly any memory on a CPU without "
            "TransformerStack.scan = True: XLA computes again before it has to."
        )
