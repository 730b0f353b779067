"""Rates and memory as data grow: tables, caches, and answers with two workers.

    python -m benchmarks.scale_data --what=table [--rows=10000,100000,1000000,10000000]
    python -m benchmarks.scale_data --what=train --rows=10000,10000000
    python -m benchmarks.scale_data --what=cache [--megabytes=10,100,1000]
    python -m benchmarks.scale_data --what=infer --model_dir=RUN [--rows=20000]

Each measurement is a process of its own, and "peak" is its largest resident memory.
Rates are of CPU time. Those of `infer` are of wall time without the start, with one
thread for each worker. Files are made in --folder, and stay there; rows of
streamed files are kept where REMIXER_TF_CACHE says.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

from benchmarks.measure import print_header, print_row

TEXT = "some text that is a note of the row and as long as such notes are: number "
TABLE = [
    "--gin_file=models/t5_1_1_tiny.gin",
    "--gin_file=runs/own_task.gin",
    "--gin.table_task.inputs='double {number}'",
    "--gin.table_task.targets='{answer}'",
    "--gin.FEATURE_LENGTHS={'inputs': 24, 'targets': 16}",
    "--gin.TRAIN_STEPS=100",
    "--gin.WARMUP_STEPS=10",
]


def make_table(folder, rows, kind):
    """Writes a table of `rows` in a format, and returns its path."""
    path = folder / f"{rows}.{kind}"
    if path.exists():
        return path
    if kind == "csv":
        with path.open("w") as file:
            file.write("number,answer,note\n")
            file.writelines(f"{i},{2 * i},{TEXT}{i}\n" for i in range(rows))
        return path
    import pyarrow
    import pyarrow.parquet

    types = dict(number=pyarrow.int64(), answer=pyarrow.int64(), note=pyarrow.string())
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema(types)) as writer:
        for start in range(0, rows, 100_000):
            part = range(start, min(rows, start + 100_000))
            note = [f"{TEXT}{i}" for i in part]
            columns = {"number": part, "answer": [2 * i for i in part], "note": note}
            writer.write_table(pyarrow.table({k: list(x) for k, x in columns.items()}))
    return path


def read_table(path, streamed):
    """In a process of its own: reads a table, saves near its end, and resumes there."""
    from remixer_tf.imports import import_less

    import_less(of_command=True)
    import tensorflow as tf

    from remixer_tf.tasks.tables import TableRows, table_task

    rows = TableRows(streamed=streamed)
    task = table_task({"train": path}, "double {number}", "{answer}", rows=rows)
    before, start = peak(), time.process_time()
    dataset = task.source.get_dataset("train", shuffle=False)
    first, start = time.process_time() - start, time.process_time()
    dataset = dataset.batch(1000)
    number = sum(len(batch["line"]) for batch in dataset)
    again = time.process_time() - start
    iterator = iter(dataset)
    for _ in range(number // 1000 - 1):
        next(iterator)
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    saved, expected = checkpoint.save(f"{path}.position"), next(iterator)["line"]
    start = time.perf_counter()
    resumed = iter(task.source.get_dataset("train", shuffle=False).batch(1000))
    tf.train.Checkpoint(iterator=resumed).restore(saved)
    assert (next(resumed)["line"].numpy() == expected.numpy()).all()
    seconds = time.perf_counter() - start
    rates = {"first": number / first, "again": number / again}
    return rates | {"resume": seconds, "before": before, "peak": peak()}


def peak():
    """The largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def in_a_process(*arguments):
    """What a function of this module returns in a process of its own."""
    code = f"import benchmarks.scale_data as s, json; print(json.dumps(s.{arguments[0]}"
    code += f"{arguments[1:]}))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def command(*arguments, **environment):
    """Runs a command. Returns its seconds, its peak in MiB, and what it printed."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "remixer_tf", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        text=True,
    )
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(output[-2000:])
    return time.perf_counter() - start, usage.ru_maxrss // 1024, output


def tables(folder, sizes):
    rates = "rows/s at first", "rows/s again"
    print_header("rows", "format", "read", *rates, "resumed at 99% (s)", "peak (MiB)")
    for rows in sizes:
        for kind in ("csv", "parquet"):
            for streamed in (True, False):
                if not streamed and rows > 10**6:
                    continue
                path = str(make_table(folder, rows, kind))
                found = in_a_process("read_table", path, streamed)
                rates = [f"{found[x]:,.0f}" for x in ("first", "again")]
                seconds = f"{found['resume']:.1f}"
                how = "streamed" if streamed else "held in memory"
                size = f"{found['peak']:,} (of {found['before']:,} before)"
                print_row(f"{rows:,}", kind, how, *rates, seconds, size)


def train(folder, sizes):
    print_header("rows", "format", "peak (MiB)", "seconds")
    for rows in sizes:
        for kind in ("csv", "parquet"):
            files = repr({"train": str(make_table(folder, rows, kind))})
            model = folder / f"run-{rows}-{kind}"
            seconds, size, _ = command(
                *["train", f"--model_dir={model}", f"--gin.FILES={files}", *TABLE],
                *["--gin.TableRows.streamed=True", f"--gin.BATCH_SIZE={32}"],
            )
            print_row(f"{rows:,}", kind, f"{size:,}", f"{seconds:.0f}")


def caches(folder, sizes):
    print_header("text (MB)", "examples", "CPU (s)", "MB/s", "peak (MiB)")
    for megabytes in sizes:
        path = folder / f"text-{megabytes}.jsonl"
        document = json.dumps({"text": f"{TEXT} and so on. " * 40}) + "\n"
        if not path.exists():
            with path.open("w") as file:
                file.writelines([document] * (megabytes * 10**6 // len(document)))
        output = folder / f"cache-{megabytes}-{os.getpid()}"
        before = cpu_of_children()
        _, size, said = command(
            *["cache", f"--output_dir={output}", "--gin_file=runs/pretrain_text.gin"],
            f"--gin.CORPUS={{'train': '{path}'}}",
            *["--gin.VOCABULARY=None", "--gin.VOCABULARY_FILE=None"],
            "--gin.text_task.streamed=True",
        )
        seconds = cpu_of_children() - before
        examples = re.search(r"([\d,]+) examples", said)[1]
        rate = f"{megabytes / seconds:.1f}"
        print_row(megabytes, examples, f"{seconds:.0f}", rate, f"{size:,}")


def answers(folder, model_dir, rows):
    """Prints CPU time, which other programs disturb less, and the rate by wall time."""
    print_header("workers", "rows", "CPU ms a row", "CPU s of the start", "rows/s")
    for workers in (1, 2):
        (few, _), (many, rate) = (
            answer(folder, model_dir, number, workers) for number in (rows // 4, rows)
        )
        a_row = (many - few) / (rows - rows // 4)
        start = f"{few - a_row * (rows // 4):.0f}"
        print_row(workers, f"{rows:,}", f"{1000 * a_row:.2f}", start, f"{rate:.0f}")


def answer(folder, model_dir, rows, workers):
    """Returns CPU seconds of a command, and rows/s of the middle half of its shards."""
    path, size = make_table(folder, rows, "csv"), rows // 40
    output = folder / f"answers-{workers}-{rows}-{os.getpid()}"
    before = cpu_of_children()
    command(
        *["infer", f"--model_dir={model_dir}", f"--input={path}", "--beam"],
        *[f"--output={output}", f"--shard_rows={size}"],
        f"--direct_num_workers={workers}",
        TF_NUM_INTRAOP_THREADS="1",
        TF_NUM_INTEROP_THREADS="1",
    )
    times = sorted(x.stat().st_mtime for x in output.glob("answers-*.jsonl"))
    # Workers start and end one after the other: the middle half has all of them.
    first, last = len(times) // 4, 3 * len(times) // 4
    rate = (last - first) * size / (times[last] - times[first])
    return cpu_of_children() - before, rate


def cpu_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def numbers(text):
    return [*map(int, text.split(","))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ("table", "train", "cache", "infer")
    parser.add_argument("--what", choices=kinds, required=True)
    parser.add_argument("--rows", type=numbers, default=[10**k for k in range(4, 8)])
    parser.add_argument("--megabytes", type=numbers, default=[10, 100, 1000])
    parser.add_argument("--model_dir")
    parser.add_argument("--folder", default="scale_data")
    options = parser.parse_args()
    folder = pathlib.Path(options.folder).resolve()
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt):
        if options.what == "table":
            tables(folder, options.rows)
        elif options.what == "train":
            train(folder, options.rows)
        elif options.what == "cache":
            caches(folder, options.megabytes)
        else:
            answers(folder, options.model_dir, options.rows[0])


if __name__ == "__main__":
    main()
