"""sMLP against dense models and mixtures of experts, at equal FLOPs and at equal time.

    python -m studies.smlp --text=FOLDER --output=FOLDER [--workers=2]
    python -m studies.smlp --text=FOLDER --output=FOLDER --time

Every model (`studies/smlp_models.py`) learns the text in bytes
(`gin/runs/smlp_comparison.gin`) with equal FLOPs per token, for the same steps, over
the same batches, under the same schedule, from three seeds. It is scored on the last
80% of the positions of the same validation rows. A finished run leaves
`FOLDER/<model>-<seed>.json`; the same command resumes where it was stopped.

`--time` trains nothing: in one process and one thread, models take turns at training
steps, and `FOLDER/step_times.json` keeps the processor time of each. The time axis is
steps times the median of a model, so that a shared machine does not draw the curves.
The command without it then prints tables and answers, and draws `FOLDER/smlp.png`.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time

from remixer_tf.commands import errors_in_one_line
from studies import runs
from studies.smlp_models import MODELS
from studies.smlp_report import Comparison

RUN_FILE = "runs/smlp_comparison.gin"
_STEPS = 5  # of a round


def make_step(model, bindings):
    """Makes a model and what trains it on one batch of random bytes.

    Returns:
        (function without arguments that takes a step, FLOPs per token of the step's
        matrix products, forward and backward).
    """
    import keras
    import tensorflow as tf

    from remixer_tf import configuration
    from remixer_tf.analysis.costs import random_superbatch
    from remixer_tf.data.pipeline import Batching
    from remixer_tf.engines.tensorflow.engine import TensorFlowEngine
    from remixer_tf.engines.tensorflow.flops import matmul_flops
    from remixer_tf.engines.tensorflow.step import TrainStep
    from remixer_tf.models.build import build_model
    from remixer_tf.run import Run
    from remixer_tf.training.loop import train

    files = [model.file, RUN_FILE]
    value = configuration.read(files, [*model.bindings, *bindings]).value
    keras.utils.set_random_seed(0)
    made = build_model(value(Run, "model"), "float32")
    step = TrainStep(
        made,
        value(train, "optimizer")(),
        tf.distribute.get_strategy(),
        jit_compile=value(TensorFlowEngine, "jit_compile"),
    )
    rows = value(Batching, "batch_size")
    lengths = value(Run, "feature_lengths")
    batch = random_superbatch(made.batch_spec(rows, lengths), made)
    flops = matmul_flops(step.run_steps.get_concrete_function(*step.arguments(batch)))
    return lambda: float(step(batch)["loss"]), flops / (rows * lengths["targets"])


def time_steps(names, bindings, rounds):
    """Times training steps of models that take turns.

    It is the processor's time: with one thread, what a step takes if no other program
    runs.

    Returns:
        dictionary, see `Comparison`.
    """
    steps, times = {}, {}
    for name in names:
        steps[name], flops = make_step(MODELS[name], bindings)
        times[name] = {"flops_per_token": flops, "seconds": []}
    for step in steps.values():  # Compiled now: making a model drops what was.
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.process_time()
            for _ in range(_STEPS):
                step()
            times[name]["seconds"].append((time.process_time() - start) / _STEPS)
    return times


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_arguments(parser)
    parser.add_argument(
        "--time", action="store_true", help="time steps instead of training"
    )
    parser.add_argument("--rounds", type=runs.number, default=20, help="of --time")
    options = parser.parse_args(arguments)
    runs.make_folder(options.output)
    path = os.path.join(options.output, "step_times.json")
    if options.time:
        runs.use_one_thread()
        times = time_steps(
            runs.matching(options.variants, MODELS),
            options.gin,
            options.rounds,
        )
        with open(path, "w") as file:
            json.dump(times, file, indent=2)
        for name, found in times.items():
            milliseconds = 1000 * statistics.median(found["seconds"])
            print(f"{name}: {milliseconds:.1f} ms a step")
        return
    results = runs.train_all(MODELS, RUN_FILE, options, runs.text_files(options.text))
    if not os.path.exists(path):
        print(f"{path} is missing: run the command with --time for the report.")
        return
    with open(path) as file:
        comparison = Comparison(results, json.load(file))
    for part in (comparison.table(), comparison.loads(), comparison.answers()):
        print(part, end="\n\n")
    comparison.draw(os.path.join(options.output, "smlp.png"))
    unigram = runs.unigram_loss(options.text)
    print(
        "A model of the bytes' frequencies alone has a perplexity of "
        f"{math.exp(unigram):.2f}."
    )


if __name__ == "__main__":
    with errors_in_one_line():
        main(sys.argv[1:])
