"""Tasks of one's own: tables in files, templates, splits, metrics, bad rows."""

import dataclasses
import datetime as dt
import decimal
import gzip
import json
import logging
import os
import zoneinfo

import numpy as np
import pytest
from t5.evaluation import metrics as t5_metrics

from remixer_tf import configuration
from remixer_tf.data.epochs import examples_per_epoch
from remixer_tf.data.lengths import LongExamples
from remixer_tf.data.pipeline import Batching, train_dataset
from remixer_tf.tasks import tables
from remixer_tf.tasks.cells import cell_text
from remixer_tf.tasks.table_files import read_table
from remixer_tf.tasks.text_metrics import METRICS

TEMPLATES = {"inputs": "{{cb}} {hypothesis}, {premise}?", "targets": "{label}"}
CSV = 'premise,hypothesis,label\n"a ""b"", c",d,yes\ne,"f\ng",no\n'
TSV = 'premise\thypothesis\tlabel\na "b", c\td\tyes\ne\tf g\tno\n'
JSON = (
    '{"premise": "a", "hypothesis": true, "label": 1, "more": []}\r\n'
    '{"label": 0.5, "premise": "\\u00e9", "hypothesis": "f"}\n'
)


def table_task(*args, **options):
    """`tables.table_task`, with `TableRows` of those of the options that it has."""
    names = [field.name for field in dataclasses.fields(tables.TableRows)]
    rows = {name: options.pop(name) for name in names if name in options}
    return tables.table_task(*args, rows=tables.TableRows(**rows), **options)


def examples_of(task, split="train"):
    return list(task.get_dataset(split=split, shuffle=False).as_numpy_iterator())


def texts_of(task, split="train"):
    return task.source.read_rows(split)


def write(path, content):
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("a.csv", CSV, [('{cb} d, a "b", c?', "yes", 2), ("{cb} f\ng, e?", "no", 3)]),
        ("a.csv.gz", CSV,
         [('{cb} d, a "b", c?', "yes", 2), ("{cb} f\ng, e?", "no", 3)]),
        ("a.tsv", TSV, [('{cb} d, a "b", c?', "yes", 2), ("{cb} f g, e?", "no", 3)]),
        ("a.tsv.gz", "\ufeff" + TSV.replace("\n", "\r\n"),
         [('{cb} d, a "b", c?', "yes", 2), ("{cb} f g, e?", "no", 3)]),
        ("a.jsonl", JSON, [("{cb} true, a?", "1", 1), ("{cb} f, é?", "0.5", 2)]),
        ("a.ndjson.gz", JSON, [("{cb} true, a?", "1", 1), ("{cb} f, é?", "0.5", 2)]),
    ],
)  # fmt: skip
def test_texts_of_each_format(tmp_path, name, content, expected):
    file = write(tmp_path / name, content)
    assert texts_of(table_task({"train": file}, **TEMPLATES)) == expected


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_blank_lines_at_the_end_are_no_rows(tmp_path, name):
    content = {"a.csv": CSV, "a.tsv": TSV, "a.jsonl": JSON}[name]
    rows = []
    for i, end in enumerate(("", "\n", "\r\n\r\n")):
        file = write(tmp_path / f"{i}{name}", content + end)
        rows.append(texts_of(table_task({"train": file}, **TEMPLATES)))
    assert rows[0] == rows[1] == rows[2] and len(rows[0]) == 2


def test_an_example_is_an_exact_dictionary(tmp_path):
    file = write(tmp_path / "a.tsv", "é\tja\n")
    task = table_task({"dev": file}, "{0}!", "{1}", name="one", header=False)
    (example,) = examples_of(task, "dev")
    assert {name: np.asarray(value).tolist() for name, value in example.items()} == {
        "inputs_pretokenized": "é!".encode(),
        "inputs": [0xC3 + 3, 0xA9 + 3, ord("!") + 3, 1],
        "targets_pretokenized": b"ja",
        "targets": [ord("j") + 3, ord("a") + 3, 1],
        "line": 1,
    }
    assert task.name == "one" and list(task.splits) == ["dev"]


def test_columns_by_number_and_by_given_names(tmp_path):
    file = write(tmp_path / "a.csv", CSV)
    expected = [('a "b", c', "yes", 2), ("e", "no", 3)]
    assert texts_of(table_task({"train": file}, "{0}", "{2}")) == expected
    columns = ["x", "y.z", "w"]
    task = table_task({"train": file}, "{y.z}", "{w}", columns=columns)
    assert texts_of(task) == [("d", "yes", 2), ("f\ng", "no", 3)]
    task = table_task({"train": file}, "{x}", "{w}", columns=columns, header=False)
    assert texts_of(task) == [("premise", "label", 1), *expected]


def hugging_face_table():
    """(`pyarrow.Table` with classes as Hugging Face's datasets mark them, rows)."""
    pyarrow = pytest.importorskip("pyarrow")
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": NAMES}
    table = pyarrow.table({"text": ["a", "b", "é"], "label": [1, 0, 1]})
    info = json.dumps({"info": {"features": features}})
    return table.replace_schema_metadata({"huggingface": info})


NAMES = {"names": ["no", "yes"], "_type": "ClassLabel"}
NUMBER = {"dtype": "int64", "_type": "Value"}


@pytest.mark.parametrize(
    ("feature", "value", "text"),
    [
        ({"feature": NAMES, "_type": "List"}, [1, 0, -1], ["yes", "no", None]),
        ({"feature": NAMES, "_type": "LargeList"}, [1], ["yes"]),
        ({"feature": NAMES, "length": 2, "_type": "Sequence"}, [1, 0], ["yes", "no"]),
        ([NAMES], [0, None], ["no", None]),
        ({"feature": NAMES, "_type": "List"}, [], []),
        ({"feature": NAMES, "_type": "List"}, None, None),
        ({"feature": NUMBER, "_type": "List"}, [1, 0], [1, 0]),
        ([[NAMES]], [[1], [], [0, 0]], [["yes"], [], ["no", "no"]]),
        ({"x": NAMES, "y": NUMBER}, {"x": 1, "y": 1}, {"x": "yes", "y": 1}),
        (
            {"feature": {"x": NAMES, "y": NUMBER}, "_type": "Sequence"},
            {"x": [1, 0], "y": [1, 0]},
            {"x": ["yes", "no"], "y": [1, 0]},
        ),
        ([{"x": NAMES, "y": NUMBER}], [{"x": 1, "y": 1}], [{"x": "yes", "y": 1}]),
    ],
)
def test_classes_in_lists_and_structs(tmp_path, feature, value, text):
    """Features as versions 3.6 and 4.4 of Hugging Face's datasets write them."""
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = pyarrow.table({"tags": [value, None]})
    info = json.dumps({"info": {"features": {"tags": feature}}})
    table = table.replace_schema_metadata({"huggingface": info})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    _, lines = read_table(str(tmp_path / "a.parquet"))
    assert [line.values["tags"] for line in lines] == [text, None]


@pytest.mark.parametrize("files", ["folder", "folder/*.arrow", "folder/left.arrow"])
def test_arrow_as_save_to_disk_writes_it(tmp_path, files):
    table = hugging_face_table()
    import pyarrow

    folder = tmp_path / "folder"
    folder.mkdir()
    parts = {"data-0.arrow": table[:2], "data-1.arrow": table[2:], "left.arrow": table}
    for name, part in parts.items():
        with pyarrow.ipc.new_stream(folder / name, part.schema) as file:
            file.write_table(part)
    state = {"_data_files": [{"filename": f"data-{i}.arrow"} for i in range(2)]}
    (folder / "state.json").write_text(json.dumps(state))
    task = table_task({"train": str(tmp_path / files)}, "{text}", "{label}")
    rows = [("a", "yes", 1), ("b", "no", 2), ("é", "yes", 3)]
    if "*" in files:  # state.json does not count.
        rows += [(text, label, line + 3) for text, label, line in rows]
    assert texts_of(task) == rows


@pytest.mark.parametrize(
    "state, problem",
    [
        (json.dumps({"_data_files": [{"filename": "/etc/passwd"}]}), "/etc/passwd"),
        (
            json.dumps({"_data_files": [{"filename": "../a.arrow"}]}),
            "in its own folder",
        ),
        (json.dumps({"_data_files": [{"filename": 1}]}), "in its own folder"),
        (json.dumps({"_data_files": {"filename": "a"}}), "is not what"),
        ("[" * 100_000, "is not what"),
        ("{}", "is not what"),
    ],
)
def test_a_state_names_files_of_its_own_folder(tmp_path, state, problem):
    """A folder may be a stranger's."""
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(ValueError, match=problem):
        read_table(str(tmp_path))


@pytest.mark.parametrize(
    "metadata, problem",
    [
        ("{", "metadata"),
        ("[]", "metadata"),
        ('{"info": {"features": {"label": {"_type": "ClassLabel"}}}}', "metadata"),
        (
            '{"info": {"features": {"label": {"_type": "ClassLabel", "names": ["n"]}}'
            "}}",
            "'label' has 1 classes, and a row has the class 1",
        ),
        (
            '{"info": {"features": {"label": [{"names": ["n"], "_type": "ClassLabel"}]'
            "}}}",
            "'label' has classes .* a row has 1 there. Expected: a list",
        ),
        ('{"info": {"features": {"label": []}}}', "metadata"),
        ('{"info": {"features": {"label": {"_type": "List"}}}}', "metadata"),
    ],
)
def test_damaged_metadata_of_classes(tmp_path, metadata, problem):
    table = hugging_face_table().replace_schema_metadata({"huggingface": metadata})
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=problem):
        read_table(str(tmp_path / "a.parquet"))


def test_a_column_whose_name_is_damaged(tmp_path):
    table, path = hugging_face_table(), tmp_path / "a.arrow"
    import pyarrow

    with pyarrow.ipc.new_stream(path, table.schema) as file:
        file.write_table(table)
    path.write_bytes(path.read_bytes().replace(b"\5\0\0\0label", b"\5\0\0\0l\x80bel"))
    with pytest.raises(configuration.UserError, match="a.arrow' is not the .* 'utf-8'"):
        read_table(str(path))


def test_a_small_file_does_not_become_a_huge_one(tmp_path):
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(bytes(2**26 + 1)))
    with pytest.raises(ValueError, match="more than 100 times as large"):
        read_table(str(path))
    path.write_bytes(gzip.compress(b"a\nb"))
    assert read_table(str(path))[0] == ["a", "0"]


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.arrow"])
def test_a_pipe_is_no_file(tmp_path, name):
    """TensorFlow would find it empty, or wait for who writes to it."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match=f"{name} is a pipe .* Write what comes from it"):
        read_table(str(tmp_path / name))


def test_parquet(tmp_path):
    table = hugging_face_table()
    import pyarrow.parquet

    for name, part in (("train-0", table[:2]), ("train-1", table[2:]), ("dev", table)):
        pyarrow.parquet.write_table(part, tmp_path / f"{name}.parquet")
    task = table_task({"train": f"{tmp_path}/train-*.parquet"}, "{text}", "{label}")
    assert texts_of(task) == [("a", "yes", 1), ("b", "no", 2), ("é", "yes", 3)]
    names, lines = read_table(str(tmp_path))
    assert names == ["text", "label"] and len(lines) == 6
    (tmp_path / "dev.parquet").write_text("PAR?")
    with pytest.raises(ValueError, match="is not the Parquet or Arrow its"):
        read_table(str(tmp_path / "dev.parquet"))


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(ImportError, match="pip install pyarrow") as error:
        read_table(str(tmp_path / "a.parquet"))
    assert isinstance(error.value, configuration.UserError)


def numbers(tmp_path, count=103):
    return write(
        tmp_path / "n.tsv", "n\n" + "".join(f"{i}\n" for i in range(1, count + 1))
    )


def test_fractions_are_disjoint_complete_and_stable(tmp_path):
    shares = {"train": 0.8, "validation": 0.1, "test": 0.1}
    options = {"inputs": "{n}", "targets": "{n}", "fractions": shares}
    file = numbers(tmp_path)
    task = table_task(file, **options)
    parts = {split: [n for _, n, _ in texts_of(task, split)] for split in shares}
    assert [len(part) for part in parts.values()] == [82, 11, 10]
    assert sorted(map(int, sum(parts.values(), []))) == list(range(1, 104))
    assert all(part == sorted(part, key=int) for part in parts.values())
    # The same on every machine, and another draw by another seed.
    assert parts["test"] == TEST_SPLIT
    again = table_task(file, **options, name="again")
    assert [n for _, n, _ in texts_of(again, "test")] == TEST_SPLIT
    other = table_task(file, **options, seed=1)
    assert [n for _, n, _ in texts_of(other, "test")] != TEST_SPLIT
    assert examples_per_epoch(task) == 82


TEST_SPLIT = [str(i) for i in (6, 34, 39, 50, 52, 54, 62, 63, 66, 98)]


def in_arrow():
    """Columns of Arrow, and the text of their first cells by arithmetic and ISO 8601.

    The second cells are missing.
    """
    pa = pytest.importorskip("pyarrow")
    moment = dt.datetime(2024, 5, 1, 12, 30)
    berlin = moment.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    cells = {
        "binary": (b"\xc3\xa9", pa.binary(), "é"),
        "large": (b"yes", pa.large_binary(), "yes"),
        "fixed": (b"no", pa.binary(2), "no"),
        "half": (np.float16(3.8), pa.float16(), "3.8"),
        "single": (3.8, pa.float32(), "3.8"),
        "double": (0.1, pa.float64(), "0.1"),
        "integer": (2**63, pa.uint64(), "9223372036854775808"),
        "boolean": (True, pa.bool_(), "true"),
        "decimal": (decimal.Decimal("1.50"), pa.decimal128(9, 2), "1.50"),
        "hundreds": (decimal.Decimal("1E+2"), pa.decimal128(9, -2), "100"),
        "date": (dt.date(2024, 5, 1), pa.date32(), "2024-05-01"),
        "time": (dt.time(12, 30), pa.time64("ns"), "12:30:00"),
        "timestamp": (moment, pa.timestamp("ns"), "2024-05-01 12:30:00"),
        "berlin": (berlin, pa.timestamp("s", "Europe/Berlin"),
                   "2024-05-01 12:30:00+02:00"),
        "exact": (1_000_000_001, pa.timestamp("ns"), "1970-01-01 00:00:01.000000001"),
        "duration": (dt.timedelta(hours=26), pa.duration("ns"), "1 day, 2:00:00"),
        "list": ([3.8, float("nan")], pa.list_(pa.float32()), "[3.8, null]"),
        "struct": ({"a": b"x", "b": dt.date(2024, 5, 1)},
                   pa.struct({"a": pa.binary(), "b": pa.date32()}),
                   '{"a": "x", "b": "2024-05-01"}'),
        "map": ([("k", 3.8)], pa.map_(pa.string(), pa.float32()), '[["k", 3.8]]'),
    }  # fmt: skip
    columns = {
        name: (pa.array([value, None], type), text)
        for name, (value, type, text) in cells.items()
    }
    category = pa.array([3.8, None], pa.float32()).dictionary_encode()
    return columns | {
        "category": (category, "3.8"),
        "nan": (pa.array([np.nan, np.nan], pa.float32()), None),
    }


def test_cells_of_arrow_are_text(tmp_path):
    """As JSON lines and CSV would have them, and formats of the values themselves."""
    columns = in_arrow()
    import pyarrow.parquet

    arrays = {name: array for name, (array, _) in columns.items()}
    table = pyarrow.table(arrays)
    with pyarrow.ipc.new_stream(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    arrays = {k: x for k, x in arrays.items() if k not in ("half", "hundreds")}
    pyarrow.parquet.write_table(pyarrow.table(arrays), tmp_path / "a.parquet")
    for end in ("arrow", "parquet"):
        names, (first, second) = read_table(str(tmp_path / f"a.{end}"))
        texts = {name: first.text(name) for name in names}
        assert texts == {name: columns[name][1] for name in names}, end
        assert {second.text(name) for name in names} == {None}
        assert first.text("single", ".2f") == "3.80"
        assert first.text("date", "%d.%m.%y") == "01.05.24"
        assert first.text("integer", ",") == "9,223,372,036,854,775,808"


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_formats_of_templates(tmp_path, name):
    content = {
        "a.csv": "x,y\n3.14159,ab\n2,c\nn/a,d\n",
        "a.jsonl": '{"x": 3.14159, "y": "ab"}\n{"x": 2, "y": "c"}\n'
                   '{"x": "n/a", "y": "d"}\n{"x": NaN, "y": "e"}\n',
    }  # fmt: skip
    file = write(tmp_path / name, content[name])
    task = table_task({"dev": file}, "{x:.1f}", "{y:>3}")
    with pytest.raises(configuration.UserError) as error:
        texts_of(task, "dev")
    assert "value that the format '.1f' cannot write in x: 1 (line" in str(error.value)
    assert ("no value of x: 1 (line 4" in str(error.value)) == (name == "a.jsonl")
    task = table_task({"dev": file}, "{x:.1f}", "{y:>3}", on_bad_rows="skip")
    rows = [("3.1", " ab"), ("2.0", "  c")]
    assert [row[:2] for row in texts_of(task, "dev")] == rows


@pytest.mark.parametrize(
    "text, spec, expected",
    [
        ("1234", ",", "1,234"), ("1234.5", ",.2f", "1,234.50"), ("0.5", ".0%", "50%"),
        ("7", "03d", "007"), ("abc", ".2", "ab"), ("2024-05-01", "%d.%m", "01.05"),
        ("2024-05-01", "%d", "01"), ("7.5", "d", None), ("abc", ".1f", None),
        ("nan", ".1f", None), (3.0, "d", "3"), (3.5, "d", None), ([1], ">5", "  [1]"),
        ("2024-05-01", ".2f", None), ("2024-05-01", ".1%", None),
        (dt.date(2024, 5, 1), ".1f", None), (True, ">5", " true"),
        (True, "d", "1"), ("3.0", "d", "3"), ("1_0", "5", "1_0  "), ("true", "d", "1"),
        # A date has no hour, and a time no day.
        ("12:30", "%H.%M", "12.30"), (dt.time(12, 30), "%I", "12"),
        (dt.time(12, 30), "%d.%m", None), ("12:30", "%d", None), ("12", "%d", None),
        (dt.date(2024, 5, 1), "%H", None), ("2024-05-01", "%d %H", None),
        ("2024-05-01 12:30", "%d %H", "01 12"), (dt.datetime(2024, 5, 1), "%H", "00"),
        # Without a time zone it would be nothing.
        ("2024-05-01 12:30", "%H %z", None), ("2024-05-01", "%d %Z", None),
        ("2024-05-01 12:30+02:00", "%H %z", "12 +0200"), ("12:30", "%Z", None),
        ("2024-05-01", "%d %p", None), ("2024-05-01", "%-d.%-m", "1.5"),
    ],
)  # fmt: skip
def test_a_text_in_a_format_of_numbers_or_dates(text, spec, expected):
    try:
        assert cell_text(text, spec) == expected
    except configuration.UserError:
        assert expected is None


CELLS = {
    "id": 42, "price": 3.14159, "flag": True, "day": dt.date(2024, 5, 1),
    "code": "007", "word": "ab", "list": [1],
}  # fmt: skip
FORMATTED = {  # format -> texts of these cells, None where it cannot write one
    "05": ("00042", "3.14159", "true0", "2024-05-01", "00007", "ab000", "[1]00"),
    "5": ("   42", "3.14159", "true ", "2024-05-01", "    7", "ab   ", "[1]  "),
    ">5": ("   42", "3.14159", " true", "2024-05-01", "  007", "   ab", "  [1]"),
    "*^7": ("**42***", "3.14159", "*true**", "2024-05-01", "**007**", "**ab***",
            "**[1]**"),
    "5s": ("42   ", "3.14159", "true ", "2024-05-01", "007  ", "ab   ", "[1]  "),
    ".1s": ("4", "3", "t", "2", "0", "a", "["),
    ".2": ("4.2e+01", "3.1", "tr", "20", "7.0", "ab", "[1"),
    "08": ("00000042", "03.14159", "true0000", "2024-05-01", "00000007", "ab000000",
           "[1]00000"),
    "+": ("+42", "+3.14159", None, None, "+7", None, None),
    "d": ("42", None, "1", None, "7", None, None),
    ".1f": ("42.0", "3.1", "1.0", None, "7.0", None, None),
    ".0%": ("4200%", "314%", "100%", None, "700%", None, None),
    "%d.%m": (None, None, None, "01.05", None, None, None),
}  # fmt: skip


@pytest.mark.parametrize("end", ["csv", "tsv", "jsonl", "parquet"])
def test_a_format_writes_the_same_from_every_kind_of_file(tmp_path, end):
    """Numbers as Python's own `format` writes them: `format(42, "05")` is 00042."""
    path = str(tmp_path / f"a.{end}")
    if end == "parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.table({k: [x] for k, x in CELLS.items()}), path)
    elif end == "jsonl":
        write(tmp_path / f"a.{end}", json.dumps(CELLS, default=str) + "\n")
    else:
        separator = "," if end == "csv" else "\t"
        rows = CELLS, [cell_text(value) for value in CELLS.values()]
        text = "".join(f"{separator.join(row)}\n" for row in rows)
        write(tmp_path / f"a.{end}", text)
    _, (row,) = read_table(path)
    for spec, expected in FORMATTED.items():
        for name, text in zip(CELLS, expected, strict=True):
            if text is None:
                with pytest.raises(configuration.UserError, match="cannot write"):
                    row.text(name, spec)
            else:
                assert row.text(name, spec) == text, (name, spec)


def test_columns_that_are_no_text_stop_only_who_reads_them(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = pa.table(
        {
            "t": ["a", "b"],
            "picture": [b"\x89PNG\xff", b"c"],
            "mars": pa.array([1, 2], pa.timestamp("us", "Mars/Phobos")),
        }
    )
    path = str(tmp_path / "p[1].parquet")  # no pattern, where there is such a file
    pyarrow.parquet.write_table(table, path)
    assert len(texts_of(table_task({"dev": path}, "{t}", "{t}"), "dev")) == 2
    task = table_task({"dev": path}, "{picture}", "{t}")
    with pytest.raises(configuration.UserError) as error:
        texts_of(task, "dev")
    report = f"dev, invalid UTF-8 in picture: 1 (line 1 of {path})"
    assert report in str(error.value)
    with pytest.raises(configuration.UserError, match="'mars' of .*p.1..*Mars/Phobos"):
        texts_of(table_task({"dev": path}, "{mars}", "{t}"), "dev")


@pytest.mark.parametrize("end", ["", '250,"b" c\n251,d\n'])
def test_lines_behind_an_open_quote_are_counted(tmp_path, end, caplog):
    rows = [f"{i},x{i}" for i in range(1, 101)]
    rows[49] = '50,"open'
    file = write(tmp_path / "a.csv", "t,l\n" + "\n".join(rows) + "\n" + end)
    kind = "malformed quotes" if end else "a quote that is not closed"
    last = 102 if end else 101
    task = table_task({"dev": file}, "{t}", "{l}", on_bad_rows="skip")
    with caplog.at_level(logging.WARNING, "absl"):
        assert len(texts_of(task, "dev")) == (50 if end else 49)
    lost = last - 50
    assert f"table: {lost} of {102 if end else 100} rows are bad" in caplog.text
    assert f"dev, {kind}: {lost} (line 51 to {last} of {file})" in caplog.text


@pytest.fixture
def bad_file(tmp_path):
    content = (
        b't,l\na,1\nb\nc,2,3\n\nd,\nf,\xff\nd, \n"x" y,2\nb,2\nc,3\nd,4\nq,"5\n6\n'
    )
    return write(tmp_path / "bad.csv", content)


def test_bad_rows_of_shards_name_their_files(tmp_path):
    for name, rows in (("0", "a,1\nb"), ("1", "a,1\na,1\nb"), ("2", "b,1")):
        (tmp_path / f"{name}.csv").write_text(f"t,l\n{rows}\n")
    with pytest.raises(ValueError) as error:
        texts_of(table_task({"train": f"{tmp_path}/*.csv"}, "{t}", "{l}"))
    lines = f"line 3 of {tmp_path}/0.csv, line 4 of {tmp_path}/1.csv"
    assert f"(expected 2): 2 ({lines}). Correct" in str(error.value)


def test_each_kind_of_bad_row_has_its_lines(bad_file, caplog):
    report = (
        "mine: 9 of 13 rows are bad{}: "
        "train, wrong column count (expected 2): 3 (line 3, 4, 5 of {}); "
        "train, empty target: 2 (line 6, 8 of {}); "
        "train, invalid UTF-8: 1 (line 7 of {}); "
        "train, malformed quotes: 1 (line 9 of {}); "
        "train, a quote that is not closed: 2 (line 13, 14 of {})."
    )
    options = {"inputs": "{t}", "targets": "{l}", "name": "mine"}
    with pytest.raises(ValueError) as error:
        texts_of(table_task({"train": bad_file}, **options))
    assert str(error.value) == report.format("", *[bad_file] * 5) + (
        " Correct them, or leave them out with TableRows.on_bad_rows = 'skip'."
    )
    assert isinstance(error.value, configuration.UserError)

    task = table_task({"train": bad_file}, **options, on_bad_rows="skip")
    with caplog.at_level(logging.WARNING, "absl"):
        assert texts_of(task) == [
            ("a", "1", 2), ("b", "2", 10), ("c", "3", 11), ("d", "4", 12)
        ]  # fmt: skip
        texts_of(task)
    (record,) = caplog.records  # Once, however often it is read.
    assert record.getMessage() == report.format(" and skipped", *[bad_file] * 5)


# A line of JSON, and why it is no row of the columns t and l.
BAD_LINES = {
    "": "malformed JSON (Expecting value)",
    '{"t"': "malformed JSON (Expecting ':' delimiter)",
    '{"t": "a, "l": "b"}': "malformed JSON (Expecting ',' delimiter)",
    '{"t": "a': "malformed JSON (Unterminated string)",
    '{"t": "a"} {}': "malformed JSON (Extra data)",
    "[1]": "no JSON object",
    "[" * 100_000: "JSON that is nested too deep",
    '{"l": "b"}': "no value of t",
    '{"t": NaN, "l": "b"}': "no value of t",
    '{"t": null, "l": "b"}': "no value of t",
    '{"t": "a"}': "empty target",
    '{"t": "\\ud800", "l": "b"}': "invalid UTF-8 in t",
    '{"t": "a", "t": "b", "l": "c"}': "two values of 't'",
    '{"t": {"x": 1, "x": 1}, "l": "c"}': "two values of 'x'",
    '{"t": 1e400, "l": "b"}': "a number that is too large (1e400) in t",
    '{"t": "a", "l": [1, {"x": -1e999}]}': "a number that is too large (-1e999) in l",
    '{"t": %s, "l": "b"}' % ("9" * 5000): "an integer of more than 4,300 digits",
}


@pytest.mark.parametrize("number", range(len(BAD_LINES)))
def test_bad_rows_of_json_lines(tmp_path, number):
    line, problem = [*BAD_LINES.items()][number]
    good = '{"t": "\u2028", "l": "b", "unread": [1e400]}'
    file = write(tmp_path / "a.jsonl", f"{good}\n{line}\n{good}\n{line}\n{good}")
    with pytest.raises(ValueError) as error:
        texts_of(table_task({"dev": file}, "{t}", "{l}"), "dev")
    assert str(error.value).startswith(
        f"table: 2 of 5 rows are bad: dev, {problem}: 2 (line 2, 4 of {file}). Correct"
    )


def test_a_row_of_two_splits_stays_in_the_later(tmp_path, caplog):
    rows = {"train": "ab ac ad ae af ag ah", "dev": "ab ba", "test": "ba ae af ag ah"}
    files = {
        split: write(
            tmp_path / f"{split}.csv", "\n".join(",".join(r) for r in x.split())
        )
        for split, x in rows.items()
    }
    options = {"inputs": "{0}", "targets": "{1}", "header": False}
    with pytest.raises(ValueError) as error:
        texts_of(table_task(files, **options), "test")
    assert str(error.value).startswith(
        "table: 6 of 14 rows are bad: "
        f"train, also in dev: 1 (line 1 of {files['train']}); "
        f"train, also in test: 4 (line 4, 5, 6, 7 of {files['train']}); "
        f"dev, also in test: 1 (line 2 of {files['dev']}). Correct"
    )
    task = table_task(files, **options, on_bad_rows="skip")
    with caplog.at_level(logging.WARNING, "absl"):
        left = {split: [t for _, t, _ in texts_of(task, split)] for split in files}
    assert left == {"train": ["c", "d"], "dev": ["b"], "test": list("aefgh")}
    assert "6 of 14 rows are bad and skipped" in caplog.text


def test_no_row_is_left(tmp_path):
    file = write(tmp_path / "a.csv", "t,l\na,\n")
    task = table_task({"train": file}, "{t}", "{l}", on_bad_rows="skip")
    with pytest.raises(ValueError, match="train has no rows that can be used"):
        texts_of(task)


def test_long_rows_are_skipped_and_their_lines_told(tmp_path):
    file = write(tmp_path / "a.tsv", "t\tl\nabcdef\ta\nab\tb\nb\tabcde\nc\td\n")
    task = table_task({"train": file}, "{t}", "{l}")
    lengths = {"inputs": 4, "targets": 4}
    skip = LongExamples("skip")
    batching = Batching(2, shuffle=False)
    dataset = train_dataset(task, lengths, batching, skip)
    assert str(dataset.over_length) == (
        "table train: 2 of 4 examples are longer than inputs 4 / targets 4 "
        "(longest: inputs 7 / targets 6; first: line 2, line 4)"
    )
    (batch,) = dataset.take(1)
    assert batch["encoder_input_tokens"].numpy()[0].tolist() == [
        [100, 101, 1, 0], [102, 1, 0, 0]
    ]  # fmt: skip
    with pytest.raises(ValueError, match="count_limit=0 counts none"):
        LongExamples("skip", count_limit=0)
    lengths = {"inputs": 1, "targets": 1}
    with pytest.raises(ValueError, match="4 of 4 .* none is left"):
        train_dataset(task, lengths, batching, skip)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"inputs": "{text"}, "columns in braces.*expected '}'"),
        ({"inputs": "{}"}, "name or number in the braces"),
        ({"inputs": "{t!r}"}, "name or number in the braces"),
        ({"inputs": "{t:{u}}"}, "name or number in the braces"),
        ({"inputs": "{t:>1000000000}"}, "thousands of characters"),
        ({"inputs": "{t:%d %EY}"}, "format '%d %EY' has '%E', which not every system"),
        ({"inputs": "{t:%s}"}, "format '%s' has '%s', which not every system"),
        ({"inputs": 3}, "inputs must be text"),
        ({"targets": "yes"}, "targets must name a column"),
        ({"metrics": ["acuracy"]}, "list of accuracy, .* Received: .'acuracy'"),
        ({"metrics": "accuracy"}, "must be a list"),
        ({"metrics": [["f1"]]}, r"must be a list of .* Received: \[\['f1'\]\]"),
        ({"on_bad_rows": "ignore"}, "on_bad_rows must be one of raise, skip"),
        ({"name": 5}, "name must be a str of letters.* Received: name=5"),
        ({"name": "a/b"}, "name must be a str of letters.* Received: name='a/b'"),
        ({"shuffle_buffer_size": "a"}, "shuffle_buffer_size must be an integer"),
        ({"columns": "ab"}, "columns must be a list of str, or None. .*'ab'"),
        ({"columns": [1]}, "columns must be a list of str"),
        ({"files": {"train": 5}}, r"files\['train'\] must be the path of a file"),
        (
            {"files": "a", "fractions": {"dev": "b"}},
            r"fractions\['dev'\] must be a num",
        ),
        ({"files": "a.tsv"}, "one file with fractions"),
        ({"fractions": {"train": 1.0}}, "files must be a dictionary"),
        ({"files": "a", "fractions": {"train": 0.8, "dev": 0.1}}, "sum to 1"),
        ({"files": "a", "fractions": {"train": 1.5, "dev": -0.5}}, "above 0"),
    ],
)
def test_arguments_that_do_not_fit(change, message):
    arguments = {"files": {"train": "a.tsv"}, "inputs": "{t}", "targets": "{l}"}
    with pytest.raises(ValueError, match=message) as error:
        table_task(**arguments | change)
    assert isinstance(error.value, configuration.UserError)


def test_a_file_may_be_a_pathlib_path(tmp_path):
    path = tmp_path / "a.csv"
    write(path, "t,l\na,b\nc,d\n")
    assert len(texts_of(table_task({"train": path}, "{t}", "{l}"))) == 2
    fractions = {"train": 0.5, "dev": 0.5}
    assert len(texts_of(table_task(path, "{t}", "{l}", fractions=fractions))) == 1


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("none.csv", {}, "There is no file .*none.csv'. In its folder: a.csv."),
        ("no/a.csv", {}, "There is no folder"),
        ("a.csv", {"inputs": "{u}"}, "no column 'u'.* It has: t, l. Its first line"),
        ("a.csv", {"inputs": "{u}", "columns": ["a", "b"]}, "It has: a, b.$"),
        ("a.csv", {"header": False}, "have no names, but numbers from 0 to 1.$"),
        ("years.tsv", {}, "It has: 2023, 0, 7. Its first line names them.$"),
        ("a.dat", {}, "does not tell its format. Expected a folder"),
        ("", {}, "no .arrow or .parquet file in the folder"),
        ("folder.tsv", {}, "folder.tsv cannot be read: .*Is a directory"),
        ("latin.tsv", {}, "names of columns in .*latin.tsv are not UTF-8"),
        ("a.jsonl", {"columns": ["t"]}, "columns names the columns of .tsv and .csv"),
        ("a.csv", {"columns": ["t", "t"]}, "columns of .*a.csv are called 't'. Rename"),
    ],
)
def test_files_that_do_not_fit(tmp_path, name, options, message):
    for file in ("a.csv", "a.dat", "a.jsonl"):
        write(tmp_path / file, "t,l\na,b\n")
    (tmp_path / "folder.tsv").mkdir()
    write(tmp_path / "latin.tsv", b"caf\xe9\tl\n")
    write(tmp_path / "years.tsv", "2023\t0\t7\na\tb\tc\n")
    options = {"inputs": "{t}", "targets": "{l}"} | options
    task = table_task({"train": str(tmp_path / name)}, **options)
    with pytest.raises(configuration.UserError, match=message):
        texts_of(task)


def test_metrics_by_name():
    targets = ["no", "a big yes", "no", "never"]
    predictions = ["no", "the yes", "never", " never "]
    direct = {
        "accuracy": t5_metrics.accuracy(targets, predictions),
        "bleu": t5_metrics.bleu(targets, predictions),
        "rouge": t5_metrics.rouge(targets, predictions),
        "exact_match": {"exact_match": 50.0},
        "f1": {"f1": pytest.approx(100 * (1 + 2 / 3 + 0 + 1) / 4)},
        # "no": one of one, of two. "never": none of one, of one; " never " is no class.
        "per_class": {
            "precision/a big yes": 0.0, "recall/a big yes": 0.0, "f1/a big yes": 0.0,
            "precision/never": 0.0, "recall/never": 0.0, "f1/never": 0.0,
            "precision/no": 100.0, "recall/no": 50.0,
            "f1/no": pytest.approx(200 / 3), "macro_f1": pytest.approx(200 / 9),
        },
    }  # fmt: skip
    task = table_task({"dev": "a.tsv"}, "{0}", "{1}", metrics=list(direct))
    results = [metric(targets, predictions) for metric in task.metric_fns]
    assert results[0]["accuracy"] == 25.0
    assert sorted(METRICS) == sorted(direct)
    for name, result in zip(direct, results, strict=True):
        assert result == direct[name], name
