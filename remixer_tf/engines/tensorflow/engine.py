"""The engine on TensorFlow: `tf.distribute` around a `tf.function`."""

import sys

import keras
import numpy as np
import tensorflow as tf

from remixer_tf import console, programs
from remixer_tf.decoding.ended_rows import compile_search
from remixer_tf.engines.device_rates import matmul_rate, peak_rate
from remixer_tf.engines.engine import (
    Cost,
    Engine,
    check_float16,
    check_rows,
    fill_rows,
)
from remixer_tf.engines.tensorflow.flops import (
    peak_bytes,
    product_flops,
    variable_bytes,
)
from remixer_tf.engines.tensorflow.step import TrainStep
from remixer_tf.engines.tensorflow.strategy import (
    get_host,
    get_strategy,
    local_replicas,
    split_rows,
    uses_xla,
)
from remixer_tf.engines.tensorflow.trace import write_json_traces
from remixer_tf.models.build import build_model
from remixer_tf.objectives.batches import targets_and_weights
from remixer_tf.optimizers.loss_scale import loss_scale_for
from remixer_tf.optimizers.options import make_optimizer
from remixer_tf.startup import check_backend


class TensorFlowEngine(Engine):
    """Runs a model under a `tf.distribute` strategy.

    Args:
        strategy: str, see `get_strategy`.
        jit_compile: bool, whether XLA compiles forward and backward passes and
            evaluations. None compiles on GPUs, and on CPUs what writes answers, see
            `Engine.compile`. TPUs always compile.

    Raises:
        ValueError: Keras runs on another library, or see `get_strategy`.
        OSError: see `get_strategy`.
    """

    def __init__(self, strategy="single", jit_compile: bool | None = None):
        check_backend("TensorFlowEngine")
        self._strategy = get_strategy(strategy)
        self._jit_compile = uses_xla(jit_compile)
        programs.find()
        self._compiles_answers = jit_compile is None and programs.are_wanted()
        self.host = get_host(self._strategy)
        self.num_replicas = self._strategy.num_replicas_in_sync
        self._replicas = local_replicas(self._strategy)
        self._costs = {}

    def build(self, model, optimizer, dtype_policy, objective=None):
        self.build_model(model, dtype_policy)
        with self._strategy.scope():
            self.optimizer = make_optimizer(optimizer)
            self.loss_scale = loss_scale_for(dtype_policy)
        self._compute_dtype = keras.DTypePolicy(dtype_policy).compute_dtype
        self._train_step = TrainStep(
            self.model,
            self.optimizer,
            self._strategy,
            objective,
            jit_compile=self._jit_compile,
            loss_scale=self.loss_scale,
        )

    def build_model(self, model, dtype_policy):
        if tf.config.list_logical_devices("TPU"):
            check_float16(dtype_policy, "TPU")
        with self._strategy.scope():
            self.model = build_model(model, dtype_policy)

    def step(self, superbatch, stop=False):
        return self._train_step(superbatch, stop=stop)

    def takes_xla(self, xla):
        if xla in ("answers", None):
            return self._jit_compile or xla is not None and self._compiles_answers
        return xla

    def compile(self, function, any_rows=False, xla=None):
        if xla == "answers":
            if not self._jit_compile and self.takes_xla(xla) and self.answer_programs:
                return self._by_xla_or_without(function, any_rows)
            xla = None
        xla = self.takes_xla(xla)
        compiled = tf.function(function, jit_compile=xla, autograph=False)
        graph = compiled.get_concrete_function
        # One of several hosts may call it alone: replicas share nothing here.
        on_replicas = tf.function(
            lambda batch: self._strategy.run(
                lambda part: graph(_specs(part, any_rows))(part), (batch,)
            ),
            autograph=False,
        )

        def call(batch):
            rows = len(next(iter(batch.values())))
            if any_rows:
                batch = fill_rows(batch, self._replicas, few=xla)
            else:
                check_rows(rows, self._replicas)
            if self._replicas == 1:
                results = graph(_specs(batch, any_rows))(batch)
            else:
                results = on_replicas(split_rows(batch, self._strategy))
            return tf.nest.map_structure(
                lambda *parts: np.concatenate([part.numpy() for part in parts])[:rows],
                *self._strategy.experimental_local_results(results),
            )

        return call

    def _by_xla_or_without(self, function, any_rows):
        """Compiles a function by XLA, and without it from the first error on.

        An error that is not XLA's comes again without it.
        """
        by_xla = compile_search(
            lambda search: self.compile(search, any_rows, xla=True),
            function,
            lambda: self.model.count_params(),
            again=self.answer_programs > 1,
        )
        without = self.compile(function, any_rows, xla=False)
        fails = False

        def call(batch):
            nonlocal fails
            if fails:
                return without(batch)
            try:
                return by_xla(batch)
            except tf.errors.OpError as error:
                found = without(batch)
                fails = True
                console.say(
                    "XLA cannot compile how this model writes, so answers take longer "
                    f"({str(error).partition(chr(10))[0]:.200})",
                    "warning",
                    sys.stderr,
                )
                return found

        return call

    def parameter_norm(self):
        variables = [variable.value for variable in self.model.trainable_variables]
        return float(tf.linalg.global_norm(variables))

    def cost(self, superbatch):
        shapes = tuple(tuple(value.shape) for value in superbatch.values())
        if shapes not in self._costs:
            step = self._train_step
            arguments = step.arguments(superbatch)
            function = step.run_steps.get_concrete_function(*arguments)
            steps = targets_and_weights(superbatch)[0].shape[0]
            variables = [*self.model.variables, *self.optimizer.variables]
            gradients = variable_bytes(self.model.trainable_variables)
            alive = peak_bytes(function) / self._replicas
            products = product_flops(function)
            self._costs[shapes] = Cost(
                flops=products.flops // steps,
                bytes=variable_bytes(variables) + gradients + alive,
                uncounted=products.uncounted,
                rest=products.rest // steps,
            )
        return self._costs[shapes]

    def matmul_rate(self):
        accelerator = bool(tf.config.list_logical_devices("GPU"))
        rate = matmul_rate(self._compute_dtype, accelerator)
        return rate * (self._devices_of_host() if accelerator else 1)

    def peak_rate(self, per_device=None):
        gpus = tf.config.list_physical_devices("GPU")
        about = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
        kind = about.get("device_name", "")
        rate = per_device or peak_rate(kind, self._compute_dtype)
        return rate and rate * self._devices_of_host()

    def _devices_of_host(self):
        gpus = len(tf.config.list_physical_devices("GPU"))
        return min(self._replicas, max(gpus, 1))

    def start_trace(self, folder):
        self._trace_folder = folder
        tf.profiler.experimental.start(folder)

    def stop_trace(self):
        tf.profiler.experimental.stop()
        write_json_traces(self._trace_folder)

    def mark_step(self, step):
        return tf.profiler.experimental.Trace("train", step_num=step, _r=1)

    def devices(self):
        there = tf.config.list_logical_devices
        devices = there("GPU") or [*there("CPU"), *there("TPU")]
        xla = "on" if self._jit_compile else "off"
        return f"{len(devices)} {devices[0].device_type}(s), XLA {xla}"

    def memory(self):
        used, gpus = {}, tf.config.list_logical_devices("GPU")
        for i, gpu in enumerate(gpus):
            about = tf.config.experimental.get_memory_info(gpu.name)
            used[f"gpu_{i}_memory"] = about["peak"] / 1e9
        return used

    def memory_limit(self):
        if tf.config.list_physical_devices("GPU"):
            return None  # TensorFlow does not report a GPU's memory.
        return super().memory_limit()


def _specs(batch, any_rows):
    """The specs of a batch's tensors; of any number of rows, or of the batch's own."""
    return {
        name: tf.TensorSpec([None if any_rows else x.shape[0], *x.shape[1:]], x.dtype)
        for name, x in batch.items()
    }
