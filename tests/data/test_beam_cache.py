"""Caches that Apache Beam writes, compared with those of one process."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import seqio
import tensorflow as tf

from remixer_tf.data import caching
from remixer_tf.tasks.tables import table_task
from remixer_tf.tasks.text import text_task

pytest.importorskip("apache_beam", reason="pip install 'remixer_tf[beam]'")

MODULE = """
import seqio

from remixer_tf.tasks.rows import byte_features


def double(dataset):
    return dataset.map(lambda n: {"inputs": n, "targets": n + n})


@seqio.map_over_dataset(num_seeds=1)
def noise(example, seed):
    import tensorflow as tf

    number = tf.random.stateless_uniform([], seed, 0, 1000, tf.int32)
    return {**example, "targets": example["targets"] + tf.strings.as_string(number)}


for name, pattern in ("doubles", "lines-*.txt"), ("others", "other.txt"):
    seqio.TaskRegistry.add(
        name,
        source=seqio.TextLineDataSource({"train": pattern}),
        preprocessors=[
            double,
            noise,
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos,
        ],
        output_features=byte_features(),
    )
seqio.MixtureRegistry.add("both", ["doubles", "others"], default_rate=1)
"""


def contents(folder):
    """{file: its bytes, or of records all of a split, sorted}, but for checksums."""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*.*")):
        name = str(path.relative_to(folder))
        if ".tfrecord-" in name:
            records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
            examples = (tf.train.Example.FromString(record) for record in records)
            texts = [x.SerializeToString(deterministic=True) for x in examples]
            found.setdefault(name.partition("-")[0], []).extend(texts)
        elif path.name != "checksums.json":
            found[name] = path.read_bytes()
    return {k: sorted(x) if isinstance(x, list) else x for k, x in found.items()}


def files(folder):
    return sorted(str(x.relative_to(folder)) for x in pathlib.Path(folder).rglob("*"))


def tables(folder):
    rows = [f"{i},{i * i}" for i in range(500)]
    (folder / "train.csv").write_text("\n".join(["a,b", *rows[:400]]))
    (folder / "dev.csv").write_text("\n".join(["a,b", *rows[400:]]))
    named = {"train": str(folder / "train.csv"), "dev": str(folder / "dev.csv")}
    return table_task(named, "{a}", "{b}")


def documents(folder):
    for part in range(3):
        lines = [json.dumps({"text": f"a text {part} {i}"}) for i in range(20)]
        (folder / f"part-{part}.jsonl").write_text("\n".join(lines))
    return text_task("lm", {"train": str(folder / "part-*.jsonl")})


@pytest.mark.slow
@pytest.mark.parametrize("make", [tables, documents])
def test_the_same_folder_as_one_process(make, tmp_path):
    from remixer_tf.data.beam_cache import BeamWriter

    task = make(tmp_path)
    one, beam = tmp_path / "one", tmp_path / "beam"
    first = list(caching.write_caches(task, str(one), 3))
    writer = BeamWriter([], tuple)
    second = list(caching.write_caches(task, str(beam), 3, write_records=writer))
    assert [x[1:] for x in first] == [x[1:] for x in second]
    assert [[*x[2]] for x in first] == [[*x[2]] for x in second]
    assert files(one) == files(beam) and contents(one) == contents(beam)
    cached = caching.cached_task(task, str(beam))
    for index in range(2):  # of two hosts
        info = seqio.ShardInfo(index, 2)
        part = cached.source.get_dataset("train", shuffle=False, shard_info=info)
        assert len(list(part)) > 0
    if task.name in seqio.TaskRegistry.names():  # as it was
        assert seqio.TaskRegistry.get(task.name).source is not task.source


def write_files(folder):
    (folder / "my_tasks.py").write_text(MODULE)
    for part in range(3):
        lines = "\n".join(f"a line {part} {i}" for i in range(2_000))
        (folder / f"lines-{part}.txt").write_text(lines)
    (folder / "other.txt").write_text("one\ntwo\nthree")


def command(folder, output, *options):
    arguments = ["cache", "--module_import=my_tasks", "--gin.TASK=both"]
    arguments += [f"--output_dir={output}", "--num_shards=2", *options]
    root = str(pathlib.Path(caching.__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-m", "remixer_tf", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.slower
def test_two_processes_and_a_killed_one(tmp_path):
    write_files(tmp_path)
    assert command(tmp_path, "one").wait() == 0
    beam = "--beam", "--runner=DirectRunner", "--direct_num_workers=2"
    killed = command(tmp_path, "two", *beam)
    first, _ = workers_of(killed.pid)
    os.kill(first, signal.SIGKILL)
    _, error = killed.communicate(timeout=90)
    assert killed.returncode == 2
    assert "worker of this machine has ended" in error.splitlines()[-1]
    assert "Traceback" not in error
    assert not any(map(files, tmp_path.glob("two")))
    assert command(tmp_path, "two", *beam).wait() == 0
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def workers_of(pid):
    """Waits until a pipeline has two workers, and returns their process ids."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        parents, workers = {}, []
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                line = (path.parent / "cmdline").read_bytes().split(b"\0")
            except OSError:  # It has ended.
                continue
            parents[int(path.parent.name)] = parent
            if b"apache_beam.runners.worker.sdk_worker_main" in line:
                workers.append(int(path.parent.name))
        mine = [x for x in workers if pid in (parents[x], parents.get(parents[x]))]
        if len(mine) == 2:
            return mine
        time.sleep(0.2)
    raise AssertionError("the pipeline started no two workers")
