"""Memory and time of a training step: remat, logits in parts, and scan.

    python -m benchmarks.memory [--tables=t5_1_1_base,gmlp_large,compile]
        [--backends=jax,tensorflow] [--steps]

One step of float32 and Adafactor, no dropout. T5.1.1 base has two rows of 512 inputs
and 512 targets, gMLP large one row of 512 tokens with 76 masked. "At once" is
`CrossEntropy.tokens_at_once`. Each row has a process of its own. gMLP large, which has
96 layers, is measured with scan on JAX.

On JAX "GB" is what the compiled program holds at once, by XLA's own analysis: weights,
slots, gradients, activations. That needs no step. With --steps, and on TensorFlow
always, a step is taken. "CPU s" is its processor time, once it is compiled. "Process
GB" is the largest size of the process until then, with the program and its compiler.

Compile times are those of a language model of width 64 on JAX: processor time of
tracing and compiling a step.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import keras

from benchmarks.measure import print_header, print_row, seconds

TOKENS = 128  # at once
# name: file of gin/models, the model, rows, lengths
MODELS = {
    "t5_1_1_base": (
        "t5_1_1_base",
        2,
        {"inputs": 512, "targets": 512},
    ),
    "gmlp_large": (
        "gmlp_large_mlm",
        1,
        {"inputs": 512, "targets": 76},
    ),
    "language_model": (
        "transformer_lm_tiny",
        2,
        {"inputs": 64, "targets": 64},
    ),
}
DEPTHS = (12, 24, 48)


def serve(row):
    """Prints what one row measures, as JSON."""
    from remixer_tf import configuration
    from remixer_tf.objectives.losses import CrossEntropy
    from remixer_tf.objectives.objective import Objective
    from remixer_tf.run import Run

    file, rows, lengths = MODELS[row["model"]]
    bindings = [f"TransformerStack.{k} = {row[k]!r}" for k in ("remat", "scan")]
    bindings += row["bindings"]
    factory = configuration.read([f"models/{file}.gin"], bindings).value(Run, "model")
    objective = Objective(CrossEntropy(1e-4, tokens_at_once=row["at_once"]))
    function = run_step if row["steps"] else compile_step
    result = function(factory, objective, rows, lengths)
    print(json.dumps(result), flush=True)


def compile_step(make_model, objective, rows, lengths):
    """Compiles a step on JAX. The weights have shapes and no values."""
    import jax

    from remixer_tf.engines.jax.flops import program_bytes
    from remixer_tf.engines.jax.step import JaxTrainStep, State
    from remixer_tf.models.build import declare
    from remixer_tf.optimizers import Adafactor

    optimizer = Adafactor(1e-3)

    def make():
        model = make_model()
        model.build()
        return model, JaxTrainStep(model, optimizer, objective)

    def shape(like, *leading):
        return jax.ShapeDtypeStruct((*leading, *like.shape), like.dtype)

    model, step = declare(make)
    state = State(*([shape(v) for v in part] for part in step.variables()))
    spec = model.batch_spec(rows, lengths)
    batch = {name: shape(like, 1) for name, like in spec.items()}
    stop = jax.ShapeDtypeStruct((1,), "float32")
    program = jax.jit(step.train_steps, donate_argnums=0)
    start = time.process_time()
    compiled = program.lower(state, batch, stop).compile()
    compiling = time.process_time() - start
    return {"compiling": compiling, "gigabytes": program_bytes(compiled) / 1e9}


def run_step(make_model, objective, rows, lengths):
    """Takes a step."""
    from remixer_tf.analysis.costs import random_superbatch
    from remixer_tf.engines.backend_engine import backend_engine
    from remixer_tf.optimizers import Adafactor

    engine = backend_engine()
    engine.build(make_model, lambda: Adafactor(1e-3), "float32", objective)
    batch = random_superbatch(engine.model.batch_spec(rows, lengths), engine.model)
    if keras.backend.backend() == "jax":
        engine.cost(batch)  # It compiles.
    else:
        float(engine.step(batch)["loss"])
    step = seconds(lambda: float(engine.step(batch)["loss"]), time.process_time)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB
    return {"step": step, "gigabytes": peak * 1024 / 1e9}


def measure(backend, model, remat=None, at_once=None, scan=False, bindings=(), steps=1):
    """Returns what `serve` prints in a process of its own."""
    row = {
        "backend": backend,
        "model": model,
        "remat": remat,
        "at_once": at_once,
        "scan": scan,
        "bindings": list(bindings),
        "steps": steps,
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", f"--serve={json.dumps(row)}"],
        env={**os.environ, "KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def print_steps(model, backends, steps):
    """A row for each engine and each way to save memory."""
    columns = ("GB", "process GB", "CPU s")
    print_header("model", "engine", "remat", "at once", "scan", *columns)
    for backend in backends:
        on_jax = backend == "jax"
        remats = (None, "cheap", "full") if on_jax else (None, "full")
        scan = on_jax and model == "gmlp_large"
        rows = [(remat, n, scan) for remat in remats for n in (None, TOKENS)]
        if on_jax and not scan:
            rows += [(None, None, True), ("full", TOKENS, True)]
        for remat, at_once, scan in rows:
            settings = backend, model, remat, at_once, scan
            held = measure(*settings, steps=0)["gigabytes"] if on_jax else None
            ran = measure(*settings) if steps or not on_jax else {}
            print_row(
                *(model, backend, remat or "", at_once or "", "yes" if scan else ""),
                f"{held:.2f}" if on_jax else "",
                f"{ran['gigabytes']:.2f}" if ran else "",
                f"{ran['step']:.1f}" if ran else "",
            )


def print_compiling():
    """A row for each depth."""
    print_header("layers", "compiling, CPU s", "with scan, CPU s")
    for depth in DEPTHS:
        bindings = [f"NUM_LAYERS = {depth}", "D_MODEL = 64", "D_FF = 128"]
        found = [
            measure("jax", "language_model", scan=scan, bindings=bindings, steps=0)[
                "compiling"
            ]
            for scan in (False, True)
        ]
        print_row(depth, *(f"{x:.1f}" for x in found))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", default="t5_1_1_base,gmlp_large,compile")
    parser.add_argument("--backends", default="jax,tensorflow")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(json.loads(args.serve))
        return
    for table in args.tables.split(","):
        if table == "compile":
            print_compiling()
        else:
            print_steps(table, args.backends.split(","), args.steps)


if __name__ == "__main__":
    main()
