"""Caches: what is written, and that training from them is training from the source."""

import json
import pathlib
import shutil

import gin
import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.data import caching, pipeline
from remixer_tf.data.lengths import LongExamples
from remixer_tf.errors import UserError
from remixer_tf.tasks.text import text_task
from tests.data.toy_tasks import rows, toy_task

LENGTHS = {"inputs": 16, "targets": 6}
DOCUMENTS = [chr(97 + i % 26) * (1_000 + i) for i in range(27)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "train.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in DOCUMENTS))
    return {"train": str(path)}


@pytest.fixture(scope="module")
def cache(corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("cache")
    task = text_task("span_corruption", corpus)
    ((folder, split, stats),) = caching.write_caches(task, str(directory), num_shards=3)
    assert (folder, split) == (str(directory / "text_span_corruption"), "train")
    assert stats["examples"] == 27
    assert stats["targets_tokens"] == sum(map(len, DOCUMENTS))
    assert stats["targets_max_tokens"] == len(DOCUMENTS[-1])
    return directory


def read(task, number=40, **kwargs):
    dataset = task.get_dataset(LENGTHS, split="train", seed=1, num_epochs=2, **kwargs)
    return [
        {name: np.asarray(x).tolist() for name, x in example.items()}
        for example in dataset.take(number).as_numpy_iterator()
    ]


def texts(dataset):
    examples = dataset.as_numpy_iterator()
    return [example["targets_pretokenized"].decode() for example in examples]


@pytest.mark.slow
def test_a_cached_task_gives_the_examples_of_its_source(corpus, cache):
    task = text_task("span_corruption", corpus)
    cached = caching.cached_task(task, str(cache))
    assert read(cached, shuffle=False) == read(task, shuffle=False)
    assert cached.num_input_examples("train") == 27


def test_seqio_reads_the_cache_itself(corpus, cache, monkeypatch):
    monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [str(cache)])
    task = text_task("documents", corpus, name="text_span_corruption")
    cached = task.get_dataset(None, use_cached=True, shuffle=False)
    assert sorted(texts(cached)) == sorted(DOCUMENTS)
    assert task.get_cached_stats("train")["examples"] == 27


def test_the_same_files_are_written_again(corpus, cache, tmp_path):
    task = text_task("span_corruption", corpus)
    list(caching.write_caches(task, str(tmp_path), num_shards=3))
    written = sorted(cache.rglob("*.*")) + [cache / "text_span_corruption/COMPLETED"]
    assert len(written) == 7
    for path in written:
        assert (tmp_path / path.relative_to(cache)).read_bytes() == path.read_bytes()


def test_a_cache_that_is_there_stays(corpus, cache):
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    task = text_task("span_corruption", corpus)
    ((_, _, stats),) = caching.write_caches(task, str(cache), num_shards=1)
    assert stats["examples"] == 27
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before


def test_a_cache_is_written_whole_or_not_at_all(tmp_path):
    def dataset_fn(split, shuffle_files):
        texts = tf.data.Dataset.from_tensor_slices(["a", "b", "not a number"])
        numbers = tf.data.Dataset.from_tensor_slices(["1", "2", "x"])
        return tf.data.Dataset.zip((texts, numbers)).map(
            lambda text, n: {"targets": text, "n": tf.strings.to_number(n)}
        )

    task = seqio.Task(
        "breaks",
        source=seqio.FunctionDataSource(dataset_fn, splits=["train"]),
        preprocessors=[seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder()],
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
    )
    with pytest.raises(OSError, match="Cannot write.*breaks"):
        list(caching.write_caches(task, str(tmp_path)))
    assert not list(tmp_path.iterdir())


@pytest.mark.slower
def test_a_resumed_run_reads_on_where_it_stopped(corpus, cache, tmp_path):
    task = text_task("span_corruption", corpus, shuffle_buffer_size=20)

    def iterator():
        dataset = pipeline.train_dataset(
            pipeline.get_task(task, cache_dir=str(cache)),
            {"inputs": 512, "targets": 114},
            pipeline.Batching(8),
            LongExamples(count_limit=0),
        )
        folder = cache / "text_span_corruption"
        assert dataset.caches == f"{task.name} train: 27 examples in {folder}"
        return iter(dataset)

    first = iterator()
    for _ in range(5):
        next(first)
    path = tf.train.Checkpoint(iterator=first).save(str(tmp_path / "checkpoint"))
    other = iterator()
    tf.train.Checkpoint(iterator=other).restore(path).assert_consumed()
    for _ in range(12):  # more than an epoch
        want, got = next(first), next(other)
        for name, x in want.items():
            np.testing.assert_array_equal(got[name], x)


def test_hosts_share_the_shards(corpus, cache):
    task = text_task("span_corruption", corpus)
    source = caching.cached_task(task, str(cache)).source
    parts = []
    for index in range(3):
        info = seqio.ShardInfo(index, 3)
        part = source.get_dataset("train", shuffle=False, shard_info=info)
        parts.append(texts(part))
    assert [len(part) for part in parts] == [9, 9, 9]
    assert sorted(sum(parts, [])) == sorted(DOCUMENTS)


def test_a_cached_mixture_mixes_by_what_is_cached(tmp_path):
    def task(name, number):
        made = toy_task({"train": rows([(2, 2)] * number)}, name)
        return made.replace(
            preprocessors=[seqio.CacheDatasetPlaceholder(), *made.preprocessors]
        )

    rate = seqio.mixing_rate_num_examples
    mixture = seqio.Mixture("toys", [(task("few", 5), rate), (task("many", 20), rate)])
    list(caching.write_caches(mixture, str(tmp_path)))
    cached = pipeline.get_task(mixture, None, str(tmp_path))
    assert [cached.get_rate(subtask) for subtask in cached.tasks] == [5, 20]


def test_the_command(corpus, tmp_path, capsys, clear_gin):
    arguments = [
        f"--output_dir={tmp_path}",
        "--gin.TASK=@text_task()",
        f"--gin.text_task.corpus={corpus}",
        "--num_shards=2",
    ]
    run_command("cache", arguments)
    stats = f"27 examples, {sum(map(len, DOCUMENTS)):,} targets tokens, 1,026 targets"
    assert (
        f"{tmp_path}/text_span_corruption train: {stats} max" in capsys.readouterr().out
    )
    assert len(list(tmp_path.glob("*/train.tfrecord-*-of-00002"))) == 2
    with pytest.raises(UserError, match="leave CACHE_DIR out"):
        run_command("cache", [*arguments, "--gin.CACHE_DIR='x'"])


@pytest.mark.slow
def test_a_table_is_read_from_its_cache(tmp_path, clear_gin):
    path = tmp_path / "toy.csv"
    path.write_text("question,answer\none,1\ntwo,\nthree,3\n")
    bindings = [
        "TASK = @table_task()",
        f"table_task.files = {{'train': '{path}'}}",
        "table_task.inputs = 'say {question}'",
        "table_task.targets = '{answer}'",
        "table_task.rows = @TableRows()",
        "TableRows.on_bad_rows = 'skip'",
    ]
    arguments = [f"--gin.{binding.replace(' = ', '=')}" for binding in bindings]
    run_command("cache", [f"--output_dir={tmp_path / 'cache'}", *arguments])
    live = configuration.call("get_task")
    gin.clear_config()
    bindings.append(f"CACHE_DIR = '{tmp_path / 'cache'}'")
    configuration.parse_gin(["runs/train.gin"], bindings, complete=False)
    cached = configuration.call("get_task")
    assert read(cached, shuffle=False) == read(live, shuffle=False)
    assert cached.num_input_examples("train") == 2


@pytest.mark.parametrize(
    "name", ["cogs", "anli_r1", "snli", "art", "sst2_classes", "copa_choices"]
)
def test_tasks_can_be_cached(name):
    assert pipeline.get_task(name).supports_caching


def test_errors(corpus, cache, tmp_path):
    task = text_task("span_corruption", corpus)
    with pytest.raises(FileNotFoundError, match="python -m remixer_tf cache"):
        pipeline.get_task(task, cache_dir=str(tmp_path))
    with pytest.raises(ValueError, match="another vocabulary of inputs"):
        pipeline.get_task(task, seqio.ByteVocabulary(), str(cache))
    with pytest.raises(ValueError, match="has no split test. It has: train"):
        list(caching.write_caches(task, str(tmp_path), splits=["test"]))
    with pytest.raises(ValueError, match="CacheDatasetPlaceholder"):
        list(caching.write_caches(toy_task({"train": rows([(2, 2)])}), str(tmp_path)))
    assert not list(pathlib.Path(tmp_path).iterdir())


def test_a_cache_without_its_numbers_is_one_line(cache, tmp_path):
    shutil.copytree(cache / "text_span_corruption", tmp_path / "damaged")
    (tmp_path / "damaged" / "stats.train.json").unlink()
    with pytest.raises(UserError, match="damaged: .*stats.train.json is missing"):
        caching.CachedSource(str(tmp_path / "damaged"))
