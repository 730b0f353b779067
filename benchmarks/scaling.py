"""Two processes of one core each against one process of one core.

    python -m benchmarks.scaling [--steps=60] [--rounds=3]

Trains Remixer tiny on mini_cogs in bytes through the train command, by `multi_worker`,
with the same batch per process. The two arrangements take turns. Efficiency is the
tokens/s of two over twice those of one.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

from benchmarks import tiny_run
from benchmarks.measure import print_header, print_row

ARGUMENTS = [
    *tiny_run.ARGUMENTS,
    "--gin.TensorFlowEngine.strategy='multi_worker'",
    "--gin.Schedule.log_period=20",
]
BATCH_PER_PROCESS = 32


def tokens_per_second(processes, steps):
    """Trains with so many processes, each on a core of its own."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(processes)]
    workers = [f"localhost:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for index in range(processes):
            task = {"type": "worker", "index": index}
            config = {"cluster": {"worker": workers}, "task": task}
            command = [sys.executable, "-m", "remixer_tf", "train", *ARGUMENTS]
            command += [f"--model_dir={folder}", f"--gin.TRAIN_STEPS={steps}"]
            command += [f"--gin.BATCH_SIZE={BATCH_PER_PROCESS * processes}"]
            process = subprocess.Popen(
                command,
                env={**os.environ, "TF_CONFIG": json.dumps(config)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=lambda core=cores[index]: os.sched_setaffinity(0, {core}),
            )
            running.append(process)
        for process in running:
            _, errors = process.communicate()
            if process.returncode:
                sys.exit(errors[-3000:])
        summary = json.loads(pathlib.Path(folder, "train_summary.json").read_text())
    return summary["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rates = {1: [], 2: []}
    for _ in range(options.rounds):
        for processes, values in rates.items():
            values.append(tokens_per_second(processes, options.steps))
    one, two = (statistics.median(values) for values in rates.values())
    efficiency = statistics.median(
        b / (2 * a) for a, b in zip(rates[1], rates[2], strict=True)
    )
    print_header("processes", "tokens/s", "efficiency")
    print_row(1, f"{one:,.0f}", "")
    print_row(2, f"{two:,.0f}", f"{efficiency:.0%}")


if __name__ == "__main__":
    main()
