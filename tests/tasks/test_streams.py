"""Tables and texts that are streamed, compared with the same held in memory."""

import functools
import gzip
import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import seqio
import tensorflow as tf

from remixer_tf.commands import run_command
from remixer_tf.data.failures import reading
from remixer_tf.data.lengths import LongExamples
from remixer_tf.data.pipeline import Batching, train_dataset
from remixer_tf.errors import UserError
from remixer_tf.programs import newest_first
from remixer_tf.tasks import streams, tables
from remixer_tf.tasks.table_files import TableFile
from remixer_tf.tasks.tables import TableRows, table_task
from remixer_tf.tasks.text import text_task
from remixer_tf.tasks.text_files import sample_texts

ROWS = [(i, f"the square\u2028 of {i}", i * i) for i in range(2_500)]


def text_of(format, rows=ROWS, header=True):
    """The rows as text, whose cells need no quotes."""
    if format == "jsonl":
        keys = "n", "text", "square"
        return "".join(json.dumps(dict(zip(keys, x, strict=True))) + "\n" for x in rows)
    comma = "," if format == "csv" else "\t"
    lines = [comma.join(map(str, row)) for row in rows]
    return "\n".join([comma.join(["n", "text", "square"])] * header + lines) + "\n"


def columns(rows=ROWS):
    n, text, square = zip(*rows, strict=True)
    return pyarrow.table({"n": n, "text": text, "square": square})


def write(path, rows=ROWS):
    """Writes rows in the format of a file's name."""
    kind = path.name.split(".")[1].partition("-")[0]
    if kind == "parquet":
        pyarrow.parquet.write_table(columns(rows), path, row_group_size=700)
    elif kind == "arrow":
        with pyarrow.ipc.new_stream(path, columns(rows).schema) as file:
            file.write_table(columns(rows), max_chunksize=300)
    elif kind.startswith("tfrecord"):
        kind = "GZIP" if path.suffix == ".gz" else ""
        with tf.io.TFRecordWriter(str(path), kind) as file:
            for row in rows:
                example = tf.train.Example()
                feature = example.features.feature
                feature["n"].int64_list.value.append(row[0])
                feature["text"].bytes_list.value.append(row[1].encode())
                feature["square"].int64_list.value.append(row[2])
                file.write(example.SerializeToString())
    else:
        data = text_of(kind, rows).encode()
        if path.suffix in (".gz", ".zst"):
            parts = data[:5_000], data[5_000:]
            data = b"".join(compress(part, path.suffix) for part in parts)
        path.write_bytes(data)


def compress(data, end):
    """One archive, .gz or .zst."""
    if end == ".gz":
        return gzip.compress(data)
    return pyarrow.Codec("zstd").compress(data, asbytes=True)


def task(files, **rows):
    rows = TableRows(**{"streamed": True} | rows)
    files = {k: str(x) for k, x in files.items()} if isinstance(files, dict) else files
    return table_task(files, "{n} {text}", "{square}", rows=rows)


def read(task, split="train", **options):
    """The rows of a task's source, as they are in `ROWS`."""
    dataset = task.source.get_dataset(split, shuffle=False, **options)
    found = []
    with reading(task, split):
        for row in dataset.as_numpy_iterator():
            n, _, text = row["inputs"].decode().partition(" ")
            found.append((int(n), text, int(row["targets"])))
    return found


def mostly_slow(*names, quick):
    return [pytest.param(x, marks=[pytest.mark.slow] * (x not in quick)) for x in names]


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        *["a.csv", "a.tsv", "a.jsonl", "a.csv.gz", "a.jsonl.zst", "a.tsv.zst"],
        *["a.parquet", "a.arrow", "a.tfrecord", "a.tfrecord.gz", "a.jsonl-0-of-1"],
        quick=["a.csv.gz", "a.jsonl.zst", "a.parquet"],
    ),
)
def test_every_format_has_the_same_rows(tmp_path, name):
    write(tmp_path / name)
    assert read(task({"train": tmp_path / name})) == ROWS
    skipped = [x for x in TableFile(str(tmp_path / name)).records(skip=1_999)]
    assert [line.number for record in skipped for line in record][:2] == (
        [2_001, 2_002] if name[2:5] in ("csv", "tsv") else [2_000, 2_001]
    )
    assert len(skipped) == 501


def test_both_formats_of_arrow(tmp_path):
    """A stream, as Hugging Face writes, and a file, as pandas and polars do."""
    path = tmp_path / "a.arrow"
    for new in pyarrow.ipc.new_stream, pyarrow.ipc.new_file:
        with new(path, columns().schema) as file:
            file.write_table(columns(), max_chunksize=300)
        assert read(task({"train": path})) == ROWS
        rows = TableFile(str(path))
        assert rows.count() == 2_500
        assert next(rows.records(skip=1_999))[0].number == 2_000
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="is not the Parquet or Arrow its name says"):
        TableFile(str(path))


def test_shards_of_a_pattern_and_hosts(tmp_path):
    for part in range(3):
        write(tmp_path / f"part-{part}.jsonl.gz", ROWS[part::3])
    sharded = task({"train": tmp_path / "part-*.jsonl.gz"})
    assert len(sharded.source.list_shards("train")) == 3
    found = read(sharded)
    assert sorted(found) == ROWS and found[:17] == [*ROWS[:48:3], ROWS[1]]
    parts = [read(sharded, shard_info=seqio.ShardInfo(i, 3)) for i in range(3)]
    assert parts == [ROWS[i::3] for i in range(3)]
    with pytest.raises(UserError, match="train has 3 files, and 4 hosts"):
        read(sharded, shard_info=seqio.ShardInfo(0, 4))


def test_what_save_to_disk_writes(tmp_path):
    write(tmp_path / "data-00000-of-00002.arrow", ROWS[:1000])
    write(tmp_path / "data-00001-of-00002.arrow", ROWS[1000:])
    names = [{"filename": f"data-0000{i}-of-00002.arrow"} for i in range(2)]
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": names}))
    assert sorted(read(task({"train": tmp_path}))) == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.jsonl.gz"])
def test_a_position_is_restored_exactly(tmp_path, name):
    write(tmp_path / name, ROWS[:300])
    rows = task({"train": tmp_path / name})

    def iterator():
        lengths = {"inputs": 32, "targets": 12}
        dataset = train_dataset(rows, lengths, Batching(64), LongExamples())
        return iter(dataset)

    first = iterator()
    for _ in range(2):
        next(first)
    path = tf.train.Checkpoint(iterator=first).save(str(tmp_path / "checkpoint"))
    second = iterator()
    tf.train.Checkpoint(iterator=second).restore(path).assert_consumed()
    for _ in range(6):  # more than an epoch
        want, got = next(first), next(second)
        for key in want:
            np.testing.assert_array_equal(want[key], got[key])


def test_splits_are_drawn_by_the_number_of_a_row(tmp_path):
    write(tmp_path / "a.csv")
    shares = {"train": 0.8, "dev": 0.2}
    drawn = task(str(tmp_path / "a.csv"), fractions=shares)
    train, dev = read(drawn), read(drawn, "dev")
    assert sorted(train + dev) == ROWS
    assert 0.18 < len(dev) / len(ROWS) < 0.22  # 2.5 deviations of a binomial
    other = task(str(tmp_path / "a.csv"), fractions=shares, seed=1)
    assert read(other, "dev") != dev


def test_bad_rows(tmp_path, caplog):
    lines = text_of("csv").split("\n")
    lines[1_500] = "3"
    lines[1_700] = "3,a,"
    (tmp_path / "a.csv").write_text("\n".join(lines))
    message = "train, wrong column count .expected 3.: 1 .line 1501 of .*a.csv"
    with pytest.raises(UserError, match=message):
        read(task({"train": tmp_path / "a.csv"}))
    skipping = task({"train": tmp_path / "a.csv"}, on_bad_rows="skip")
    assert read(skipping) == ROWS[:1_499] + ROWS[1_500:1_699] + ROWS[1_700:]
    (text,) = [x.getMessage() for x in caplog.records if "skipped" in x.getMessage()]
    assert "2 of 2,500 rows are bad and skipped" in text and "line 1701" in text


@pytest.mark.parametrize(
    "first, problem",
    [
        ('{"n": 1, "text": "a"}', "empty target"),
        ('{"square": 1}', "no value of "),
        ("{bad", "malformed JSON"),
        ("[1]", "no JSON object"),
    ],
)
def test_a_first_row_that_is_bad_is_one_bad_row(tmp_path, first, problem, caplog):
    """Its columns are not those of the file, held in memory or streamed."""
    path = tmp_path / "a.jsonl"
    path.write_text(f"{first}\n{text_of('jsonl', ROWS[:9])}")
    for streamed in (True, False):
        caplog.clear()
        of = functools.partial(task, {"train": path}, streamed=streamed)
        with pytest.raises(UserError, match=f"train, {problem}.*line 1 of"):
            read(of())
        assert read(of(on_bad_rows="skip")) == ROWS[:9]
        assert "1 of 10 rows are bad and skipped" in caplog.text
    path.write_text("{bad\n")
    for streamed in (True, False):
        with pytest.raises(UserError, match="1 of 1 rows are bad: train, malformed"):
            read(task({"train": path}, streamed=streamed))


@pytest.mark.parametrize(
    "first, problem",
    [
        ('{"id": 1}', "no text"),
        ("{bad", "malformed JSON"),
        ("[1]", "no JSON object"),
    ],
)
def test_a_first_document_that_is_bad_is_one(tmp_path, first, problem, caplog):
    (tmp_path / "a.jsonl").write_text(f'{first}\n{{"text": "a"}}\n')
    corpus = {"train": str(tmp_path / "a.jsonl")}
    for streamed in (True, False):
        caplog.clear()
        of = functools.partial(text_task, "lm", corpus, streamed=streamed)
        with pytest.raises(UserError, match=f"a.jsonl, {problem}.*line 1 "):
            documents(of())
        assert documents(of(on_bad_rows="skip")) == ["a"]
        assert "1 of 2 rows are bad and skipped" in caplog.text


def test_a_column_that_comes_late(tmp_path, caplog):
    """Held in memory, all rows are known. Streamed, each column must come early."""

    def write_late(number):
        lines = ['{"n": 1, "text": "a"}\n'] * number
        (tmp_path / "a.jsonl").write_text("".join(lines) + text_of("jsonl", ROWS[:9]))

    for number in (999, 1_000):
        write_late(number)
        for streamed in [False] + [True] * (number < 1_000):
            of = task(
                {"train": tmp_path / "a.jsonl"}, streamed=streamed, on_bad_rows="skip"
            )
            assert read(of) == ROWS[:9]
            assert f"{number:,} of {number + 9:,} rows are bad" in caplog.text
    late = "a.jsonl .the first 1,000 rows must show each column. has no column 'square'"
    with pytest.raises(UserError, match=late):
        read(task({"train": tmp_path / "a.jsonl"}, on_bad_rows="skip"))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("b.csv", "text,n,square\na,1,1\n", "b.csv has other columns than .*a.csv"),
        ("b.jsonl", '{"n": 1, "text": "a"}\n', "b.jsonl has no column 'square'"),
        (
            "b.csv.gz",
            gzip.compress(b"n,text,square\n" * 9)[:-9],
            "b.csv.gz cannot be de",
        ),
        ("b.csv.zst", b"no zstd", "b.csv.zst cannot be decompressed"),
        ("b.csv.zst", b"", "b.csv.zst cannot be decompressed: it has no bytes"),
        ("b.csv.gz", b"", "b.csv.gz cannot be decompressed: it has no bytes"),
        ("b.parquet", b"PAR1 no", "b.parquet' is not the Parquet"),
        ("b.tfrecord", b"no record at all", "b.tfrecord' holds no records"),
        ("b.tar", b"", "b.tar' is a tar archive, as WebDataset's. tf.data reads none"),
        ("b.tar.gz", b"", "is a tar archive"),
    ],
)
def test_a_shard_that_does_not_fit_is_named(tmp_path, name, content, message):
    kind = "csv" if "csv" in name else name.split(".")[1]
    if kind != "tar":
        write(tmp_path / f"a.{kind}", ROWS[:9])
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(task({"train": tmp_path / f"*.{kind}*"}))


_CUT = ("tfrecord", "tfrecord.gz", "arrow", "parquet", "jsonl.gz", "jsonl.zst")


@pytest.mark.parametrize("name", [f"a.{kind}" for kind in _CUT])
def test_records_that_are_cut_are_named(tmp_path, name, capfd):
    """TensorFlow takes a cut for the end, in .gz and in a record's first bytes.

    So does pyarrow between the batches of an Arrow stream.
    """
    path = tmp_path / name
    write(path, ROWS[:9])
    whole = path.read_bytes()
    record = len(whole) // 9  # all have the same size
    between = range(0, len(whole), record) if name == "a.tfrecord" else ()
    if ".jsonl." in name:  # A second archive without rows follows.
        between = [len(whole) - len(compress(b"", path.suffix))]
    for cut in {*range(len(whole))} - {*between}:
        path.write_bytes(whole[:cut])
        with pytest.raises(UserError, match=name):
            TableFile(str(path)).count()
    path.write_bytes(whole)
    assert TableFile(str(path)).count() == 9
    assert "deprecated" not in capfd.readouterr().err


def test_a_file_that_grows_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    write(path, ROWS[:9])
    drawn = tables.fill

    def grows(*args):
        with path.open("a") as file:
            file.write("\n")
        return drawn(*args)

    monkeypatch.setattr(tables, "fill", grows)
    with pytest.raises(UserError, match="a.jsonl has changed while it was read"):
        read(task({"train": path}))


def kept(folder):
    """The files of rows in a folder, the newest first."""
    return [path for path in newest_first(folder) if path.endswith(".tfrecord")]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder that rows are kept in."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setattr(streams, "_folder", lambda: str(folder))
    return str(folder)


def test_rows_are_kept_until_the_file_changes(tmp_path, monkeypatch, place):
    write(tmp_path / "a.csv", ROWS[:9])
    rows = task({"train": tmp_path / "a.csv"})
    assert read(rows) == ROWS[:9]
    (first,) = kept(place)
    monkeypatch.setattr(rows.source, "_read", None)  # It is not read again.
    dataset = rows.source.get_dataset("train", shuffle=False).repeat(2)
    iterator = dataset.as_numpy_iterator()
    next(iterator)
    write(tmp_path / "a.csv", ROWS[:10])
    assert read(task({"train": tmp_path / "a.csv"})) == ROWS[:10]
    (second,) = kept(place)
    assert first.rpartition("-")[0] == second.rpartition("-")[0] and first != second
    assert len(list(iterator)) == 17  # What reads the old rows goes on.


def test_processes_that_read_a_file_at_once(tmp_path, monkeypatch, place):
    """Another process begins, and ends, while this one writes the rows."""
    write(tmp_path / "a.csv", ROWS[:9])
    first, second = (task({"train": tmp_path / "a.csv"}) for _ in range(2))
    own = first.source._read

    def rows(split, path):
        for number, row in enumerate(own(split, path)):
            if number == 5:
                with monkeypatch.context() as other:
                    name = "remixer_tf.checkpoints.whole_folder.temporary_name"
                    other.setattr(name, "{}.writing-other".format)
                    assert read(second) == ROWS[:9]
            yield row

    first.source._read = rows
    assert read(first) == ROWS[:9]


def test_the_oldest_rows_go_when_there_are_too_many(tmp_path, monkeypatch, place):
    for name, used in ("old", 1), ("new", 2):
        path = tmp_path / "kept" / f"{name}.tfrecord"
        path.write_bytes(bytes(1000))
        os.utime(path, (used, used))
    for part in range(3):
        write(tmp_path / f"{part}.csv", ROWS[:9])
    rows = task({"train": tmp_path / "*.csv"})
    read(rows)
    assert len(kept(place)) == 5
    own = sum(map(os.path.getsize, kept(place)[:3]))
    monkeypatch.setattr(streams, "_MOST_BYTES", own + 1500)
    write(tmp_path / "2.csv", ROWS[:9][::-1])
    read(rows)
    assert [*map(os.path.basename, kept(place))][3:] == ["new.tfrecord"]
    monkeypatch.setattr(streams, "_MOST_BYTES", 1)  # less than this process reads
    write(tmp_path / "2.csv", ROWS[:9])
    assert len(read(rows)) == 27 and len(kept(place)) == 3


@pytest.mark.parametrize("first, second", [("", ROWS[:5]), (ROWS[:5], "")])
def test_empty_shards(tmp_path, first, second):
    for name, rows in zip("ab", (first, second), strict=True):
        path = tmp_path / f"{name}.csv"
        write(path, rows) if rows else path.write_text("")
    assert read(task({"train": tmp_path / "*.csv"})) == ROWS[:5]


@pytest.mark.parametrize("text", ["", "n,text,square\n"])
def test_no_rows_at_all(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match="train has no rows: .*a.csv"):
        read(task({"train": tmp_path / "a.csv"}))


def test_large_files_are_streamed(tmp_path, monkeypatch):
    write(tmp_path / "a.csv")
    small = task({"train": tmp_path / "a.csv"}, streamed=None)
    assert not isinstance(small.source, streams.StreamedRows)
    monkeypatch.setattr(streams, "_LARGE", 1000)
    large = task({"train": tmp_path / "a.csv"}, streamed=None)
    assert isinstance(large.source, streams.StreamedRows)
    missing = task({"train": tmp_path / "missing.csv"}, streamed=None)
    assert missing.source.splits == ("train",)


def documents(task):
    dataset = task.source.get_dataset("train", shuffle=False)
    with reading(task, "train"):
        return [row["text"].decode() for row in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("size", [100, 300_000])
def test_documents_are_those_held_in_memory(tmp_path, size, monkeypatch):
    monkeypatch.setattr("remixer_tf.tasks.text_files._BOOK", 200_000)
    paragraphs = [f"a  line {i}\nand another" for i in range(size // 20)]
    (tmp_path / "a.txt").write_text("\n \n".join(paragraphs) + "\n")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": f"text {i}"}) + "\n" for i in range(99))
    corpus = {"train": [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl.gz")]}
    streamed, held = (text_task("lm", corpus, streamed=x) for x in (True, False))
    assert sorted(documents(streamed)) == sorted(documents(held))
    assert documents(streamed)[0].startswith("a line 0 and another\na line 1 and")


def test_a_book_is_read_between_its_lines(tmp_path):
    text = "head\n*** START OF THE BOOK ***\n\nin it\n\n*** END OF THE BOOK ***\nfoot"
    (tmp_path / "a.txt").write_text(text)
    task = text_task("lm", {"train": str(tmp_path / "a.txt")}, streamed=True)
    assert documents(task) == ["in it"]


def test_bad_documents(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": ""}\n{"text": "b"}\n')
    corpus = {"train": str(tmp_path / "a.jsonl")}
    with pytest.raises(UserError, match="a.jsonl, no text: 1 .line 2 of"):
        documents(text_task("lm", corpus, streamed=True))
    skipping = text_task("lm", corpus, on_bad_rows="skip", streamed=True)
    assert documents(skipping) == ["a", "b"]
    with pytest.raises(UserError, match="needs a corpus that names files"):
        text_task("lm", streamed=True)


def test_a_sample_has_each_text_with_the_same_chance(tmp_path):
    for part in range(2):
        lines = [json.dumps({"body": f"{part} {i}"}) for i in range(10)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
    pattern = str(tmp_path / "*.jsonl")
    drawn, total = sample_texts(pattern, 30, column="body")
    assert total == 20 and drawn == [f"{p} {i}" for p in range(2) for i in range(10)]
    counts = np.zeros(20)
    for seed in range(100):
        for text in sample_texts(pattern, 5, seed, "body")[0]:
            part, number = map(int, text.split())
            counts[10 * part + number] += 1
    # Of a binomial with 100 draws of 1/4: mean 25, deviation 4.3.
    assert counts.sum() == 500 and abs(counts - 25).max() < 4 * 4.3
    with pytest.raises(UserError, match="has no column 'text'. It has: body"):
        sample_texts(pattern, 5)


def test_a_sample_leaves_bad_rows_out(tmp_path, caplog):
    """`train_vocabulary` has no option to skip them, and has read all files by then."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"text": "a"}\n{bad\n{"text": " "}\n{"text": "b"}\n')
    assert sample_texts(str(path), 9) == (["a", "b"], 2)
    assert "3 of 5 rows are bad and skipped" in caplog.text
    path.write_text("{bad\n")
    with pytest.raises(UserError, match="There is no text in .*a.jsonl"):
        sample_texts(str(path), 9)


@pytest.mark.slow
def test_a_vocabulary_and_a_report_of_shards(tmp_path, capsys):
    for part in range(2):
        write(tmp_path / f"part-{part}.csv.gz", ROWS[part::2])
    named = f"--input={tmp_path / 'part-*.csv.gz'}", f"--output={tmp_path / 'v.model'}"
    options = ["--column=text", "--num_examples=300", "--vocab_size=60"]
    run_command("train_vocabulary", [*named, *options])
    output = capsys.readouterr().out
    assert "300 of 2,500 texts" in output and "60 pieces" in output
    with pytest.raises(UserError, match="give --task or --input"):
        run_command("train_vocabulary", [*named, "--task=mini_cogs"])
    files = repr({"train": str(tmp_path / "part-*.csv.gz")})
    settings = ["--gin_file=runs/own_task.gin", f"--gin.FILES={files}"]
    settings += [
        "--gin.table_task.inputs='{n} {text}'",
        "--gin.table_task.targets='{n}'",
    ]
    settings.append("--gin.TableRows.streamed=True")
    run_command("data_report", [*settings, "--max_examples=100"])
    output = capsys.readouterr().out
    assert "100 or more" in output and "a sample, the first 100, examples" in output
