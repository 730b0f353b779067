"""Caches: their files, and training from them, which equals that from the source."""

import functools
import json
import pathlib
import shutil

import numpy as np
import pytest
import seqio
import tensorflow as tf

import remixer_tf
from remixer_tf import configuration
from remixer_tf.checkpoints.whole_folder import read_json, write_json, write_whole
from remixer_tf.commands import run_command
from remixer_tf.configured import data_of_run
from remixer_tf.data import caching, pipeline
from remixer_tf.data.lengths import LongExamples
from remixer_tf.data.task_settings import describe_task, differences, to_json
from remixer_tf.errors import UserError
from remixer_tf.tasks.rows import RowSource
from remixer_tf.tasks.tables import TableRows, table_task
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


@pytest.mark.slow
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
    assert len(written) == 9
    for path in written:
        assert (tmp_path / path.relative_to(cache)).read_bytes() == path.read_bytes()


def test_a_host_that_reads_all_knows_how_many_a_cache_has(corpus, cache):
    """A shuffle buffer of more would be saved whole, with each checkpoint."""
    task = caching.cached_task(text_task("span_corruption", corpus), str(cache))
    for part in (None, seqio.ShardInfo(0, 1)):
        dataset = task.source.get_dataset("train", shard_info=part)
        assert int(dataset.cardinality()) == len([*dataset]) == 27


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
    with pytest.raises(OSError, match="breaks train cannot be read: .*: x"):
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
    with pytest.raises(UserError, match="add --gin.CACHE_DIR=None"):
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
    settings = configuration.read(["runs/train.gin"], bindings, complete=False)
    live, _ = data_of_run(settings)
    bindings.append(f"CACHE_DIR = '{tmp_path / 'cache'}'")
    settings = configuration.read(["runs/train.gin"], bindings, complete=False)
    cached, _ = data_of_run(settings)
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


def table(folder, inputs="say: {q}", **rows):
    files = f"{folder}/all.tsv"
    files = files if "fractions" in rows else {"train": files}
    return table_task(files, inputs, "{a}", "pairs", TableRows(**rows))


@pytest.fixture(scope="module")
def cached_table(tmp_path_factory):
    """A folder with a table of 40 rows, and its cache of four shards."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "source").mkdir()
    lines = "".join(f"q{i}\ta{i}\n" for i in range(40))
    (folder / "source" / "all.tsv").write_text(f"q\ta\n{lines}")
    list(caching.write_caches(table(folder / "source"), f"{folder}/cache", 4))
    return folder


OTHERS = {
    "inputs was 'say: {q}' and is 'tell: {q}'": {"inputs": "tell: {q}"},
    "seed was 0 and is 1": {"seed": 1},
    r"columns was None and is \['q', 'a'\]": {"columns": ["q", "a"]},
    "header was True and is False": {"header": False},
    "on_bad_rows was 'raise' and is 'skip'": {"on_bad_rows": "skip"},
    "fractions was None and is {'train'": {"fractions": {"train": 0.5, "dev": 0.5}},
}


@pytest.mark.parametrize("message", OTHERS)
def test_a_cache_of_other_settings_is_refused_by_name(cached_table, message):
    task = table(cached_table / "source", **OTHERS[message])
    with pytest.raises(
        UserError, match=f"from another pairs: .*{message}.*write it ag"
    ):
        caching.cached_task(task, f"{cached_table}/cache")
    with pytest.raises(UserError, match=message):  # The command does not take it for
        list(caching.write_caches(task, f"{cached_table}/cache"))  # written already.


def test_a_cache_needs_no_source_but_one_that_is_there_must_be_the_same(
    cached_table, tmp_path
):
    cache, file = f"{cached_table}/cache", tmp_path / "all.tsv"
    caching.cached_task(table(tmp_path), cache)  # There is none.
    content = (cached_table / "source" / "all.tsv").read_text()
    file.write_text(content)  # a copy, of a later time
    caching.cached_task(table(tmp_path), cache)
    file.write_text(content.replace("a7", "a8"))
    with pytest.raises(UserError, match=f"{file} has changed"):
        caching.cached_task(table(tmp_path), cache)


def make_own(path, shift=1, sign="!"):
    """A user's task whose functions hold its source."""

    def dataset_fn(split, shuffle_files):
        lines = tf.data.TextLineDataset(path)
        return lines.map(lambda line: {"targets": tf.strings.join([line, sign])})

    def number(dataset):
        return dataset.map(lambda x: x | {"number": shift})

    return seqio.Task(
        "own",
        source=seqio.FunctionDataSource(dataset_fn, splits=["train"]),
        preprocessors=[
            number,
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
        ],
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
    )


def test_what_functions_of_a_users_task_hold_counts(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\n")
    list(caching.write_caches(make_own(str(path)), f"{tmp_path}/cache", 1))
    for others, message in (
        ({"shift": 2}, "number|shift was 1 and is 2"),
        ({"sign": "?"}, "sign was '!' and is '\\?'"),
    ):
        with pytest.raises(UserError, match=message):
            caching.cached_task(make_own(str(path), **others), f"{tmp_path}/cache")
    path.write_text("a\nc\n")
    with pytest.raises(UserError, match="lines.txt has changed"):
        caching.cached_task(make_own(str(path)), f"{tmp_path}/cache")


def test_what_a_process_has_read_does_not_count(cached_table, monkeypatch):
    """`kept_while_unchanged` keeps rows in a function's closure."""
    from remixer_tf.tasks import text_files

    monkeypatch.setenv("REMIXER_TF_TEXT_DIR", str(cached_table / "source"))
    (cached_table / "source" / "a.txt").write_text("some text\n\nmore of it")
    for task in (
        text_task("documents", {"train": f"{cached_table}/source/a.txt"}),
        seqio.Task(
            "own",
            source=RowSource(lambda split: [(x,) for x in text_files.read_split(split)],
                             ["train"], ["targets"]),
            preprocessors=[seqio.CacheDatasetPlaceholder()],
            output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
        ),
    ):  # fmt: skip
        before = to_json(describe_task(task))
        assert len(list(task.source.get_dataset("train"))) == 1
        assert to_json(describe_task(task)) == before
        assert "a.txt" in json.dumps(before)


def with_value(value):
    """A task whose first step holds a value."""
    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, ["train"])
    return seqio.Task(
        "own",
        source=source,
        preprocessors=[lambda dataset: value, seqio.CacheDatasetPlaceholder()],
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
    )


class Shift:
    by = 1
    read = {}
    BY = {}

    def __call__(self, x):
        return x + self.by + self.start + self.most()

    @functools.cached_property
    def start(self):
        return 1

    most = functools.cache(lambda self: 1)


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("__call__", lambda self, x: x - self.by),
        ("by", 2),
        ("start", functools.cached_property(lambda self: 2)),
        ("most", functools.cache(lambda self: 2)),
    ],
)
def test_what_a_users_class_has_counts(monkeypatch, bound, name, value):
    task = with_value(Shift().__call__ if bound else Shift())
    saved = to_json(describe_task(task))
    assert [*differences(saved, describe_task(task))] == []
    monkeypatch.setattr(Shift, name, value)
    found = "; ".join(differences(saved, describe_task(task)))
    assert f"Shift.{name}" in found


def test_what_a_users_class_keeps_does_not_count(monkeypatch):
    shift = Shift()
    task = with_value(shift)
    saved = to_json(describe_task(task))
    assert shift.start == 1  # from now on an attribute of the object
    monkeypatch.setitem(Shift.read, "train", ["a"])
    assert [*differences(saved, describe_task(task))] == []
    monkeypatch.setitem(Shift.BY, "train", 1)
    assert [*differences(saved, describe_task(task))]


TWICE = {
    # As sets of texts, these are in another order in each process.
    "a set in a function": lambda i: eval(f"lambda x: x in {['{0, 8}', '{8, 0}'][i]}"),
    "objects of NumPy": lambda i: np.array(["".join("ab"), 1.5], object),
    "not finite": lambda i: [float("nan"), float("inf"), np.float32("-inf")],
    "between words": lambda i: ["/", "./", "../.."],
    "its own file": lambda i: lambda: __file__,
    "an address": lambda i: "https://example.com/words.txt",
}


@pytest.mark.parametrize("kind", TWICE)
def test_a_task_equals_itself_in_another_process(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (with_value(TWICE[kind](i)) for i in range(2))
    path = str(tmp_path / "task.json")
    write_json(path, to_json(describe_task(first)))
    assert "contents" not in pathlib.Path(path).read_text()
    assert [*differences(read_json(path), describe_task(second))] == []


def test_files_of_equal_names_and_of_object_stores_are_compared(tmp_path):
    ram = f"ram://{tmp_path}"
    tf.io.gfile.makedirs(ram)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text("1")
    write_whole(f"{ram}/x.txt", "1")
    task = with_value([f"{tmp_path}/*/x.txt", f"{ram}/x.txt"])
    saved = to_json(describe_task(task))
    assert [*differences(saved, describe_task(task))] == []
    (tmp_path / "a" / "x.txt").write_text("23")
    write_whole(f"{ram}/x.txt", "23")
    assert [*differences(saved, describe_task(task))] == [
        f"{tmp_path}/a/x.txt has changed",
        f"{ram}/x.txt has changed",
    ]


def test_what_a_source_keeps_when_it_is_read_does_not_count(tmp_path):
    def make():
        kept = {}

        def dataset_fn(split, shuffle_files):
            kept[split] = kept.get(split, ["a", "b"])
            return tf.data.Dataset.from_tensor_slices({"targets": kept[split]})

        task = make_own("")
        return task.replace(source=seqio.FunctionDataSource(dataset_fn, ["train"]))

    list(caching.write_caches(make(), str(tmp_path), 1))
    caching.cached_task(make(), str(tmp_path))


def count(directory):
    task = caching.cached_task(table("/nowhere"), str(directory))
    return len(list(task.get_dataset(None, split="train", shuffle=False)))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


SHARD = "train.tfrecord-00001-of-00004"
DAMAGES = {
    "lost": pathlib.Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:50]),
}


@pytest.mark.parametrize("name", [SHARD, "info.train.json", "task.json"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_cache_is_one_line_that_names_the_file(
    cached_table, tmp_path, how, name
):
    shutil.copytree(cached_table / "cache", tmp_path, dirs_exist_ok=True)
    DAMAGES[how](tmp_path / "pairs" / name)
    with pytest.raises(UserError, match=f"The cache .*pairs is damaged: .*{name}"):
        count(tmp_path)


def test_a_cache_of_an_earlier_version_is_read_if_no_shard_is_empty(
    cached_table, tmp_path, caplog
):
    shutil.copytree(cached_table / "cache", tmp_path, dirs_exist_ok=True)
    for name in ("task.json", "checksums.json"):
        (tmp_path / "pairs" / name).unlink()
    assert count(tmp_path) == 40
    assert "does not say from which settings" in caplog.text
    (tmp_path / "pairs" / SHARD).write_bytes(b"")
    with pytest.raises(UserError, match=f"damaged: empty: {SHARD}"):
        count(tmp_path)


def test_a_cache_of_a_newer_version_is_refused(cached_table, tmp_path):
    shutil.copytree(cached_table / "cache", tmp_path, dirs_exist_ok=True)
    (tmp_path / "pairs" / "checksums.json").unlink()
    path = tmp_path / "pairs" / "task.json"
    path.write_text(path.read_text().replace(remixer_tf.__version__, "99.1"))
    with pytest.raises(UserError, match="written by remixer_tf 99.1, and this is"):
        count(tmp_path)


def both(lines):
    return lines.map(lambda text: {"inputs": text, "targets": text})


def unpretokenized(examples):
    names = "inputs", "targets"
    return examples.map(lambda x: {name: x[f"{name}_pretokenized"] for name in names})


SLOW = [pytest.param(x, marks=pytest.mark.slow) for x in ("lines", "examples")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cache", *SLOW])
def test_a_position_is_restored_where_the_files_are_now(cached_table, tmp_path, kind):
    """They move between two processes of a run."""

    def iterator(folder):
        if kind == "cache":
            task = caching.cached_task(table("/nowhere"), str(folder))
            task = task.replace(shuffle_buffer_size=3)
        else:
            source, step = seqio.TextLineDataSource({"train": f"{folder}/*.txt"}), both
            if kind == "examples":
                features = dict.fromkeys(
                    ["inputs_pretokenized", "targets_pretokenized"],
                    tf.io.FixedLenFeature([], tf.string),
                )
                pattern = f"{folder}/pairs/train.tfrecord-*"
                source = seqio.TFExampleDataSource({"train": pattern}, features)
                step = unpretokenized
            task = seqio.Task(
                "moved",
                source=source,
                preprocessors=[
                    step,
                    seqio.preprocessors.tokenize,
                ],
                output_features=dict.fromkeys(
                    ["inputs", "targets"], seqio.Feature(seqio.ByteVocabulary())
                ),
                shuffle_buffer_size=3,
            )
        batching, long = pipeline.Batching(2), LongExamples(count_limit=0)
        return iter(pipeline.train_dataset(task, LENGTHS, batching, long))

    shutil.copytree(cached_table / "cache", tmp_path / "before")
    for i in range(3):
        lines = "".join(f"{i} {j}\n" for j in range(99))
        (tmp_path / "before" / f"{i}.txt").write_text(lines)
    first = iterator(tmp_path / "before")
    for _ in range(4):
        next(first)
    path = tf.train.Checkpoint(iterator=first).save(str(tmp_path / "checkpoint"))
    want = [next(first) for _ in range(20)]
    del first
    (tmp_path / "before").rename(tmp_path / "after")
    second = iterator(tmp_path / "after")
    tf.train.Checkpoint(iterator=second).restore(path).assert_consumed()
    for batch in want:
        for name, value in next(second).items():
            np.testing.assert_array_equal(value, batch[name])


def test_a_cache_without_its_numbers_is_one_line(cache, tmp_path):
    shutil.copytree(cache / "text_span_corruption", tmp_path / "damaged")
    (tmp_path / "damaged" / "stats.train.json").unlink()
    with pytest.raises(UserError, match="damaged: missing or changed: stats.train"):
        caching.CachedSource(str(tmp_path / "damaged"))
