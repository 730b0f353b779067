"""LoRA next to full fine-tuning: step time and memory; and next to PEFT, for parity.

    python -m benchmarks.lora [--model=remixer_small] [--rank=8] [--rounds=5] [--adam]
    python -m benchmarks.lora --peft [--reference_python=PYTHON]

The first has a process each for full fine-tuning and for adapters, which take turns:
batch 4, lengths 512 and 114, Adafactor or Adam, no dropout. Peak memory is that of the
process.

The second makes a random T5.1.1 of small's width with PEFT's adapters on query and
value (rank 4, alpha 16). It is imported, and gets the same A and B. PYTHON can
import torch, transformers and peft. Distances are the largest of all logits over their
standard deviation.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile

import numpy as np

from benchmarks.measure import median, print_header, print_row, ratio, take_turns
from benchmarks.training_step import BATCH, INPUTS, TARGETS

RANK, ALPHA = 4, 16  # PEFT's here


def serve(kind, model, rank, adam):
    """Takes a step for each line that it reads, and answers with a line of JSON."""
    import keras

    from remixer_tf import configuration
    from remixer_tf.analysis.costs import random_superbatch
    from remixer_tf.engines.backend_engine import backend_engine
    from remixer_tf.models import EncoderDecoder, Lora
    from remixer_tf.optimizers import Adafactor
    from remixer_tf.run import Run

    settings = configuration.read([f"models/{model}.gin"], [])
    adapters = Lora(rank) if kind == "lora" else None
    run = Run(settings.bound(EncoderDecoder), adapters=adapters)
    engine = backend_engine()
    optimizer = keras.optimizers.Adam if adam else Adafactor
    engine.build(run.make_model, lambda: optimizer(1e-3), "float32")
    spec = engine.model.batch_spec(BATCH, {"inputs": INPUTS, "targets": TARGETS})
    batch = random_superbatch(spec, engine.model)
    for _ in sys.stdin:
        float(engine.step(batch)["loss"])
        print(json.dumps("done"), flush=True)

    def size(variables):
        return sum(4 * int(np.prod(v.shape)) for v in variables)

    about = {
        "trained": size(engine.model.trainable_variables) // 4,
        "slots": size(engine.optimizer.variables),
        "flops": engine.cost(batch).flops,
        "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    print(json.dumps(about), flush=True)


def measure(model, rank, rounds, adam):
    """Prints a row for full fine-tuning and one for adapters."""
    workers = {
        kind: subprocess.Popen(
            [sys.executable, "-m", "benchmarks.lora", f"--serve={kind}"]
            + [f"--model={model}", f"--rank={rank}", *["--adam"] * adam],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in ("full", "lora")
    }

    def step(worker):
        worker.stdin.write("\n")
        worker.stdin.flush()
        json.loads(worker.stdout.readline())

    contestants = {kind: lambda w=worker: step(w) for kind, worker in workers.items()}
    take_turns(contestants, 1)  # It compiles.
    times = take_turns(contestants, rounds)
    print_header(
        *("", "trained parameters", "optimizer (MB)", "GFLOP/step", "ms/step"),
        *("ratio", "peak memory (GB)"),
    )
    for kind, worker in workers.items():
        worker.stdin.close()
        about = json.loads(worker.stdout.readline())
        worker.wait()
        print_row(
            kind,
            f"{about['trained']:,}",
            f"{about['slots'] / 1e6:.2f}",
            f"{about['flops'] / 1e9:.0f}",
            f"{1000 * median(times, kind):.0f}",
            f"{ratio(times, kind, 'full'):.2f}",
            f"{about['peak'] / 1e9:.2f}",
        )


def compare_with_peft(python):
    """Prints how far our adapters' logits are from PEFT's."""
    import remixer_tf as rt
    from remixer_tf.weights.names import find_name

    with tempfile.TemporaryDirectory() as folder:
        reference = os.path.join(os.path.dirname(__file__), "lora_reference.py")
        subprocess.run([python, reference, folder, str(RANK), str(ALPHA)], check=True)
        answers = np.load(os.path.join(folder, "answers.npz"))
        bindings = ["VOCABULARY = @byte_vocabulary()", "VOCABULARY_FILE = None"]
        run = rt.load(os.path.join(folder, "published"), bindings=bindings)
        batch = {k: answers[k].astype("int32") for k in answers if k.endswith("tokens")}

        def distance(one, other):
            return f"{np.abs(one - other).max() / answers['double'].std():.1e}"

        before = np.array(run.model(batch))
        run.model.enable_lora(RANK, alpha=ALPHA)
        same = np.array_equal(np.array(run.model(batch)), before)
        for variable in run.model.trainable_variables:
            path = variable.path.partition("/")[2].rpartition("/")[0]
            name, _ = find_name(f"{path}/kernel", run.run.source.rows)
            array = answers[f"{name.removesuffix('.weight')} {variable.name[-1]}"]
            variable.assign(array.T)
        print(f"B of zeros changes no bit: {same}")
        adapted, theirs = np.array(run.model(batch)), answers["peft"]
        with contextlib.redirect_stdout(None):
            run.export(os.path.join(folder, "merged"), "huggingface")
        subprocess.run([python, reference, folder, "merged"], check=True)
        merged = np.load(os.path.join(folder, "merged.npz"))["logits"]
        print_header("logits", "distance")
        print_row("ours from PEFT's", distance(adapted, theirs))
        print_row("PEFT's from its own in float64", distance(theirs, answers["double"]))
        print_row("ours from PEFT's in float64", distance(adapted, answers["double"]))
        print_row(
            "transformers' of our merged export from PEFT's", distance(merged, theirs)
        )
        print_row("with adapters from without", distance(adapted, before))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="remixer_small")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--adam", action="store_true")
    parser.add_argument("--serve", choices=("full", "lora"), help=argparse.SUPPRESS)
    parser.add_argument("--peft", action="store_true")
    parser.add_argument("--reference_python", default=sys.executable)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.model, options.rank, options.adam)
    elif options.peft:
        compare_with_peft(options.reference_python)
    else:
        measure(options.model, options.rank, options.rounds, options.adam)


if __name__ == "__main__":
    main()
