"""Runs of tiny models from given weights, on whichever engine Keras' backend has.

    KERAS_BACKEND=jax python -m tests.engines.engine_runs PART FOLDER

PART is `first`, or `more`, which only slower tests read. Of each of its `CASES` comes
the run FOLDER/<name>, from the weights in FOLDER/start/<kind>, with the text of its
program in program.txt; of fully sharded parameters also that of an evaluation in
evaluation.txt. The first makes FOLDER/bytes, a run of `train_run`, with the answers of
the commands in jax, and FOLDER/made/<layout>.npz, what a model and its optimizer are
made with, and of each the shape of a device's part. The other makes FOLDER/experts,
what mixtures compute that drop nothing.

    KERAS_BACKEND=jax python -m tests.engines.engine_runs PART FOLDER ADDRESS INDEX

is one of two processes, which make `CASES_OF_TWO` of that part. In `first`,
FOLDER/by_two_INDEX.json says what else they saw.
"""

import functools
import json
import os
import pathlib
import shutil
import signal
import sys
import time
from typing import NamedTuple
from unittest import mock

import jax
import keras
import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints.initial import InitialCheckpoint
from remixer_tf.checkpoints.reading import available_steps
from remixer_tf.checkpoints.writing import write_weights
from remixer_tf.commands import run_command
from remixer_tf.decoding import greedy_decode
from remixer_tf.engines.backend_engine import backend_engine
from remixer_tf.engines.jax.engine import JaxEngine
from remixer_tf.engines.jax.processes import MissingProcessesError, meet
from remixer_tf.evaluation.base import Evaluation
from remixer_tf.layers import HashRouter, MoE, SwitchRouter
from remixer_tf.models import DecoderOnly, TransformerStack
from remixer_tf.objectives.losses import CrossEntropy
from remixer_tf.optimizers import Adafactor
from remixer_tf.run import Run
from tests.continuing import copy_until_first_checkpoint
from tests.models.tiny import VOCAB_SIZE, read_by, tiny_batch, tiny_model
from tests.tiny_run import train_run
from tests.training.toy import train_toy

STEPS, PERIOD = 20, 10
RULES = "batch:data,d_ff:model,heads:model,vocab:model"
LAYOUTS = {
    "one": (),
    "4x1": ("data:4", RULES),
    "2x2": ("data:2,model:2", RULES),
    # The tiny models have 2 heads.
    "1x4": ("data:1,model:4", "batch:data,d_ff:model,vocab:model"),
    "zero": ("data:4", "batch:data,d_model:data"),
    "data": ("data:4", "batch:data,experts:data"),
    "axis": ("data:2,expert:2", "batch:data,batch:expert,experts:expert"),
}


class Case(NamedTuple):
    """A run: its model, its devices, and the case whose first half it resumes."""

    kind: str
    layout: str = "one"
    dropout_rate: float = 0.0
    goes_on: str | None = None
    checkpoint_format: str = "tensorflow"
    policy: str = "float32"


KINDS = {"first": ["t5_1_1"], "more": ["remixer", "gmlp", "mixer"]}
CASES = {
    "first": {
        **{f"{kind}_one": Case(kind) for kind in KINDS["first"]},
        "t5_1_1_2x2": Case("t5_1_1", "2x2"),
        "killed_2x2": Case(
            "t5_1_1", "2x2", goes_on="killed", checkpoint_format="orbax"
        ),
    },
    "more": {
        **{f"{kind}_one": Case(kind) for kind in KINDS["more"]},
        "t5_1_1_1x4": Case("t5_1_1", "1x4"),
        "t5_1_1_zero": Case("t5_1_1", "zero"),
        "t5_1_1_4x1": Case("t5_1_1", "4x1", goes_on="t5_1_1_2x2"),
        "killed_4x1": Case("t5_1_1", "4x1", goes_on="killed"),
        "remixer_2x2": Case("remixer", "2x2"),
        "gmlp_2x2": Case("gmlp", "2x2"),
        "dropout_one": Case("t5_1_1", "one", 0.3),
        "dropout_2x2": Case("t5_1_1", "2x2", 0.3),
        "dropout_2x2_again": Case("t5_1_1", "2x2", 0.3, goes_on="dropout_2x2"),
        **{
            f"experts_{layout}": Case("experts", layout)
            for layout in ("one", "data", "axis")
        },
        "half_one": Case("t5_1_1", policy="mixed_float16"),
        "half_2x2": Case("t5_1_1", "2x2", goes_on="half_one", policy="mixed_float16"),
    },
}
# A run by a process that does not live until its end.
KILLED = Case("t5_1_1", "2x2", checkpoint_format="orbax")

CASES_OF_TWO = {
    "first": {
        "t5_1_1_2x2_by_two": Case("t5_1_1", "2x2", checkpoint_format="orbax"),
        "t5_1_1_2x2_by_two_again": Case("t5_1_1", "2x2", goes_on="t5_1_1_2x2_by_two"),
    },
    "more": {
        "remixer_1x4_by_two": Case("remixer", "1x4"),  # Both read all rows.
        "gmlp_2x2_by_two": Case("gmlp", "2x2"),
        "mixer_4x1_by_two": Case("mixer", "4x1"),
    },
}


def make_model(kind, dropout_rate=0.0):
    """A tiny model."""
    if kind == "experts":
        return experts_model()
    model = tiny_model(kind, dropout_rate=dropout_rate, num_layers=1)
    model.build = lambda: None  # It is built.
    return model


def make_optimizer():
    return Adafactor(1e-2, min_dim_size_to_factor=8)


def experts_model(router=None):
    """A mixture of experts, which drops tokens, in four groups of two rows."""
    router = router or functools.partial(SwitchRouter, capacity_factor=0.5)
    experts = functools.partial(MoE, 4, 12, router, group_size=14)
    stack = functools.partial(TransformerStack, {"experts": experts}, num_layers=1)
    model = DecoderOnly(stack, VOCAB_SIZE, d_model=8)
    model.build()
    model.build = lambda: None  # It is built.
    return model


def write_start(folder, part):
    """Writes the weights that the runs of a part start from."""
    for kind in {case.kind for case in CASES[part].values()}:
        keras.utils.set_random_seed(0)
        model = make_model(kind)
        for variable in model.trainable_variables:
            if "router" in variable.path:  # No choice is close to another.
                variable.assign(10 * variable)
        write_weights(f"{folder}/start/{kind}", model)


def dataset(seed, steps_per_call, shard_info, kind=""):
    """Endless, the same batches for all: 8 rows, padded unevenly, or a part of them."""
    batches = [tiny_batch(batch_size=8, seed=i) for i in range(STEPS)]
    size = 8 // shard_info.num_shards
    own = slice(shard_info.index * size, (shard_info.index + 1) * size)
    rows = {key: np.stack([batch[key][own] for batch in batches]) for key in batches[0]}
    if kind == "experts":  # It has no inputs apart.
        del rows["encoder_input_tokens"]
    data = tf.data.Dataset.from_tensor_slices(rows).repeat()
    return data.batch(steps_per_call, drop_remainder=True)


class Answers(Evaluation):
    """A model's answer to a batch: the mean square of each row's logits, and a few
    tokens that it writes.
    """

    kind = "loss"

    def parts(self):
        return [("tiny", "dev")]

    def settings(self):
        return {}

    def hash_examples(self, part):
        return ""

    def batch_function(self, model):
        def answers(batch):
            inputs = {"encoder_input_tokens": batch["encoder_input_tokens"]}
            logits = model(read_by(model, batch), training=False)
            return logits, greedy_decode(model, inputs, 5).tokens

        return answers

    def predict(self, part, model, function):
        logits, tokens = function(tiny_batch(batch_size=8, seed=0))
        squares = np.mean(np.square(logits), axis=(1, 2))
        return {"rows": squares.tolist(), "tokens": tokens.tolist()}, squares

    def metrics(self, part, predictions):
        return {"square": float(predictions.mean())}


def run(folder, name, case, engine=backend_engine):
    """Makes the run FOLDER/<name>, with checkpoints at PERIOD and STEPS."""
    if case.goes_on == "killed":
        shutil.copytree(folder / "killed", folder / name)
    elif case.goes_on and not (folder / name).exists():
        copy_until_first_checkpoint(folder / case.goes_on, folder / name)
    train_toy(
        Run(
            lambda: make_model(case.kind, case.dropout_rate),
            engine=engine,
            dtype_policy=case.policy,
        ),
        folder / name,
        STEPS,
        optimizer=make_optimizer,
        dataset=functools.partial(dataset, kind=case.kind),
        steps_per_call=2,
        log_period=2,
        checkpoint_period=PERIOD,
        clip_norm=1.0,
        loss_fn=CrossEntropy(z_loss=1e-4),
        initial=None
        if case.goes_on
        else InitialCheckpoint(f"{folder}/start/{case.kind}"),
        evaluations=[Answers(period=STEPS)] if case.kind in ("gmlp", "experts") else [],
    )


class StoppingEngine(JaxEngine):
    """Signals its own process in its first call, as a machine that is taken away."""

    def __init__(self, *layout, signals, **options):
        super().__init__(*layout, **options)
        self._signals = signals
        self.calls = 0

    def step(self, superbatch, stop=False):
        self.calls += 1
        if self._signals and self.calls == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(superbatch, stop)


class KillingEngine(JaxEngine):
    """Kills its process in the middle, as soon as the first checkpoint is there."""

    def __init__(self, checkpoints, *layout, **options):
        super().__init__(*layout, **options)
        self._checkpoints = checkpoints
        self._calls = 0

    def step(self, superbatch, stop=False):
        self._calls += 1
        if self._calls * 2 > PERIOD + 4:  # What ran after the checkpoint is lost.
            while not available_steps(self._checkpoints):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(superbatch, stop)


def start_killed(folder):
    """Starts the run FOLDER/killed in a child process, and returns its id.

    Nothing of TensorFlow's or JAX's may run before, as it would not in the child.
    """
    child = os.fork()
    if child:
        return child

    def engine():
        return KillingEngine(
            str(folder / "killed/checkpoints"),
            *LAYOUTS[KILLED.layout],
            checkpoint_format=KILLED.checkpoint_format,
        )

    run(folder, "killed", KILLED, engine)
    os._exit(0)  # It is not reached.


def write_made(folder, layout, in_parts=False):
    """Writes FOLDER/made/<layout>.npz.

    Args:
        in_parts: whether Keras computes some small variables as it does large ones.
    """
    from keras.src.backend.jax import core as jax_variables

    shard_at_init = jax_variables.should_shard_at_init
    if in_parts:
        jax_variables.should_shard_at_init = (
            lambda _, shape: shape in [(40, 8), (12, 8)]  # embedding, feed-forward
        )
    try:
        keras.utils.set_random_seed(0)
        engine = JaxEngine(*LAYOUTS[layout])
        engine.build(lambda: make_model("t5_1_1", 0.3), make_optimizer, "float32")
    finally:
        jax_variables.should_shard_at_init = shard_at_init
    arrays = {}
    for group, variables in engine.variables().items():
        for path, variable in variables.items():
            value = variable.value
            arrays[f"{group}/{path}"] = np.asarray(value)
            arrays[f"part/{group}/{path}"] = value.sharding.shard_shape(value.shape)
    (folder / "made").mkdir(exist_ok=True)
    np.savez(folder / "made" / f"{layout}.npz", **arrays)


def ask(model_dir, name, *more):
    """Has the commands answer and score, into the folder MODEL_DIR/<name>."""
    (model_dir / name).mkdir()
    lines = {
        "infer": "A cat saw the dog .\nthe teacher slept\nB\n",
        "score": "a\tb\na b\tc\n",
    }
    for command, text in lines.items():
        output = model_dir / name / command
        (model_dir / "input").write_text(text)
        files = [f"--input={model_dir}/input", f"--output={output}"]
        scores = ["--scores"] if command == "infer" else []
        run_command(command, [f"--model_dir={model_dir}", *files, *scores, *more])


def score_dev(model_dir, name, *more):
    """Has the command evaluate the run of `train_run`, as the evaluation `name`."""
    of_few = [f"name='{name}'", "splits=['dev']", "max_examples=6"]
    run_command(
        "eval",
        [
            f"--model_dir={model_dir}",
            "--step=1",
            "--gin.evaluate.evaluations=[@LossEvaluation()]",
            *(f"--gin.LossEvaluation.{binding}" for binding in of_few),
            *more,
        ],
    )


def first_batch(engine):
    """The batch that the engine's first step reads."""
    data = dataset(seed=0, steps_per_call=2, shard_info=engine.host.shard_info)
    return read_by(engine.model, next(iter(data)))


def call_compiled(engine, function, batch):
    """What the engine computes of a batch, and the text of its program."""
    jit, texts = jax.jit, []

    def noting(function):
        program = jit(function)

        def call(*arguments):
            texts.append(program.lower(*arguments).compile().as_text())
            return program(*arguments)

        return call

    with mock.patch.object(jax, "jit", noting):
        compiled = engine.compile(function)
    return compiled(batch), texts[0]


def evaluation_program(engine):
    """The text of the program that evaluates a batch of the engine's model."""
    batch = read_by(engine.model, tiny_batch(batch_size=8, seed=0))
    return call_compiled(engine, lambda x: engine.model(x, training=False), batch)[1]


def write_experts(folder, layout):
    """Writes what mixtures that drop nothing compute: FOLDER/experts/<layout>.npz, and
    the text of the programs.

    One that evaluates, and one that trains, with the gradients of its weights.
    """
    (folder / "experts").mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    batch = {"decoder_input_tokens": rng.integers(2, VOCAB_SIZE, (8, 26), "int32")}
    hashed = functools.partial(HashRouter, vocab_size=VOCAB_SIZE)
    arrays = {}
    for name, router in (("evaluating", SwitchRouter), ("training", hashed)):
        keras.utils.set_random_seed(0)
        engine = JaxEngine(*LAYOUTS[layout])
        engine.build_model(lambda router=router: experts_model(router), "float32")
        variables = engine.model.trainable_variables

        def gradients(batch, model=engine.model, variables=variables):
            def loss(weights):
                with keras.StatelessScope(zip(variables, weights, strict=True)):
                    logits = model(batch, training=True)
                return keras.ops.sum(keras.ops.softsign(logits))

            found = jax.grad(loss)([variable.value for variable in variables])
            return [gradient[None] for gradient in found]

        def outputs(batch, model=engine.model):
            return [model(batch, training=False)]

        function = outputs if name == "evaluating" else gradients
        values, text = call_compiled(engine, function, batch)
        (folder / "experts" / f"{name}_{layout}.txt").write_text(text)
        arrays |= {f"{name}_{i}": value for i, value in enumerate(values)}
    np.savez(folder / "experts" / f"{layout}.npz", **arrays)


def main_of_two(part, folder, address, index):
    """Makes the runs of two processes."""
    distributed = {
        "coordinator_address": address,
        "num_processes": 2,
        "process_id": index,
    }

    def make_engine(case, signals=False):
        return StoppingEngine(
            *LAYOUTS[case.layout],
            signals=signals,
            checkpoint_format=case.checkpoint_format,
            distributed=distributed,
            barrier_seconds=60,
        )

    seen = {}
    for name, case in CASES_OF_TWO[part].items():
        engine = make_engine(case)
        if case.goes_on and index == 0:
            copy_until_first_checkpoint(folder / case.goes_on, folder / name)
        engine.host.barrier()
        if case.goes_on:  # First until the second process is signalled.
            stopped = make_engine(case, signals=index == 1)
            try:
                run(folder, name, case, lambda engine=stopped: engine)
            except SystemExit as end:
                steps = available_steps(folder / name / "checkpoints")
                seen["stopped"] = end.code, stopped.calls, steps
        run(folder, name, case, lambda engine=engine: engine)
    if part == "more":
        return
    seen["calls"] = engine.calls
    norm = engine.parameter_norm()
    with engine.whole_model() as model:
        whole = [np.asarray(variable.value) for variable in model.trainable_variables]
    seen["norms"] = norm, float(np.sqrt(sum(np.sum(np.square(x)) for x in whole)))
    keras.utils.set_random_seed(index)  # As different as by chance.
    score_dev(
        folder / "bytes",
        "by_two",
        f"--gin.JaxEngine.distributed={distributed}",
        "--gin.JaxEngine.mesh_shape='data:4'",
    )
    if index == 0:
        try:
            meet(seconds=0.5)
        except MissingProcessesError as error:
            seen["missing"] = str(error)
    (folder / f"by_two_{index}.json").write_text(json.dumps(seen))


def main(part, folder):
    """Makes the runs of one process."""
    if part == "first":
        write_first(folder)
    else:
        for layout in ("one", "data", "axis"):
            write_experts(folder, layout)
    for name, case in CASES[part].items():
        engine = JaxEngine(
            *LAYOUTS[case.layout], checkpoint_format=case.checkpoint_format
        )
        run(folder, name, case, lambda engine=engine: engine)
        program, _ = engine.program(first_batch(engine))
        (folder / name / "program.txt").write_text(program.as_text())
        if case.layout == "zero":
            text = evaluation_program(engine)
            (folder / name / "evaluation.txt").write_text(text)


def write_first(folder):
    """Writes the run that is killed, that of the commands, and FOLDER/made."""
    child = start_killed(folder)
    by_orbax = "--gin.JaxEngine.checkpoint_format='orbax'"
    train_run(
        folder / "bytes", "bytes", by_orbax, "--gin.JaxEngine.mesh_shape='data:4'"
    )
    ask(folder / "bytes", "jax")
    ask(
        folder / "bytes",
        "jax_2x2",
        "--gin.JaxEngine.mesh_shape='data:2,model:2'",
        # The vocabulary of bytes has an odd size.
        "--gin.JaxEngine.layout_rules='batch:data,d_ff:model,heads:model'",
    )
    for layout in ("one", "2x2", "zero"):
        write_made(folder, layout, in_parts=layout == "zero")
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    (folder / "killed" / "is_dead").touch()


if __name__ == "__main__":
    part, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if len(sys.argv) == 3:
        main(part, folder)
    else:
        main_of_two(part, folder, sys.argv[3], int(sys.argv[4]))
