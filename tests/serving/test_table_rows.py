"""Answers to the rows of tables: all of them, once, after any interruption."""

import datetime
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pyarrow
import pyarrow.parquet
import pytest

from remixer_tf.commands import run_command
from remixer_tf.errors import UserError
from remixer_tf.serving import table_rows
from remixer_tf.serving.table_rows import TableJob
from remixer_tf.tasks import table_files
from remixer_tf.tasks.table_files import TableFile
from remixer_tf.training.run_folder import RunLock
from tests.tiny_run import train_run

LOADED = []


def upper(texts):
    return [{"outputs": "|".join(x).upper()} for x in texts], [False] * len(texts)


def job(folder, pattern="*.csv", templates=("ask {n}",), rows=4, **asked):
    named = str(folder / pattern), str(folder / "out"), list(templates)
    return TableJob(*named, "answers", rows, asked, ["outputs"])


def finished(asked, answer=upper):
    """Writes what is missing, and returns the numbers of rows."""
    for parts in asked.stretches():
        asked.write(parts, answer)
    return asked.finish()


def lines(folder, pattern="answers-*.jsonl"):
    texts = [path.read_text() for path in sorted((folder / "out").glob(pattern))]
    return [json.loads(line) for text in texts for line in text.split("\n")[:-1]]


def tables(folder):
    (folder / "a.csv").write_text("n,b\n" + "".join(f"{i},x{i}\n" for i in range(10)))
    (folder / "b.csv").write_text("n,b\n" + "".join(f"{i},y{i}\n" for i in range(3)))


def test_each_row_has_one_answer_and_its_columns(tmp_path):
    tables(tmp_path)
    asked = job(tmp_path)
    assert [x.records for x in asked.parts] == [4, 4, 2, 3]
    for parts in asked.stretches():
        asked.write(parts, upper)
        asked.write(parts, None)  # as a worker that is started again
    assert asked.finish() == {"answers": 13, "bad": 0, "trimmed": 0}
    found = lines(tmp_path)
    assert found[0] == {"key": "a.csv:2", "n": "0", "b": "x0", "outputs": "ASK 0"}
    assert [x["b"] for x in found] == [f"x{i}" for i in range(10)] + ["y0", "y1", "y2"]
    assert sorted(os.listdir(tmp_path / "out")) == [
        *[f"answers-00000-0000{i}.jsonl" for i in range(3)],
        *["answers-00001-00000.jsonl", "bad_rows.jsonl", "plan.json", "summary.json"],
    ]
    again = job(tmp_path)
    assert again.missing() == [] and again.finish()["answers"] == 13


def test_what_is_done_is_not_done_again(tmp_path):
    tables(tmp_path)
    first = job(tmp_path)
    first.write(first.parts[:3], upper)
    second = job(tmp_path)
    assert second.missing() == first.parts[3:]
    with pytest.raises(UserError, match="1 of the input's files could not be read"):
        second.finish()
    second = job(tmp_path)
    assert finished(second)["answers"] == 13


def test_answers_that_were_removed_are_not_counted_as_there(tmp_path):
    tables(tmp_path)
    first, removed = job(tmp_path), tmp_path / "out" / "answers-00000-00001.jsonl"
    first.write(first.parts[:2], upper)
    removed.unlink()
    assert job(tmp_path).missing() == first.parts[1:]
    assert finished(job(tmp_path))["answers"] == len(lines(tmp_path)) == 13
    removed.unlink()
    with pytest.raises(UserError, match="out lacks answers-00000-00001.jsonl, which"):
        finished(job(tmp_path))


def test_bad_rows_have_a_file_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "_FIRST_ROWS", 3)
    rows = [{"n": 1}, {"m": 2}, [], {"n": 3, "outputs": 4}, {"n": None}, {"n": "long"}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_bytes(
        text.encode() + b'{"n": "\xff"}\n{"n": 1e999}\n{"n": 1, "b": "\\ud800"}\n'
    )

    def answer(texts):
        found, long = upper(texts)
        return [x if "LONG" not in x["outputs"] else "too long" for x in found], long

    asked = job(tmp_path, "a.jsonl", rows=3)
    assert finished(asked, answer) == {"answers": 1, "bad": 8, "trimmed": 0}
    assert lines(tmp_path) == [{"key": "a.jsonl:1", "n": 1, "outputs": "ASK 1"}]
    reasons = {x["line"]: x["reason"] for x in lines(tmp_path, "bad_rows.jsonl")}
    assert reasons == {
        2: "no value of n",
        3: "no JSON object",
        4: "a column is called 'outputs', as the answer's",
        5: "no value of n",
        6: "too long",
        7: "invalid UTF-8",
        8: "a number that is too large (1e999) in n",
        9: "invalid UTF-8",
    }


def test_cells_of_parquet_and_a_key_of_its_own(tmp_path):
    day, number = datetime.date(2026, 1, 2), pyarrow.array([1.5], pyarrow.float32())
    columns = {"key": ["k"], "n": [7], "day": [day], "list": [[1, None]], "f": number}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    asked = job(tmp_path, "a.parquet")
    finished(asked)
    assert lines(tmp_path) == [
        {
            **{"key": "k", "n": 7, "day": "2026-01-02", "list": [1, None], "f": 1.5},
            "outputs": "ASK 7",
        }
    ]


def test_lines_of_text(tmp_path):
    (tmp_path / "a.txt").write_text("one\ttwo\nthree\n")
    asked = job(tmp_path, "a.txt", ["{inputs}", "{targets}"])
    assert finished(asked)["bad"] == 1
    assert [x["outputs"] for x in lines(tmp_path)] == ["ONE|TWO"]


def test_a_table_without_a_line_of_names(tmp_path):
    (tmp_path / "a.tsv").write_text("1\tx\n2\ty\n")
    for columns, name in ((None, "0"), (["n", "b"], "n")):
        named = str(tmp_path / "a.tsv"), str(tmp_path / "out"), [f"ask {{{name}}}"]
        read = {"header": False, "columns": columns}
        asked = TableJob(*named, "answers", 4, {}, ["outputs"], read)
        assert finished(asked)["answers"] == 2
        row = {"key": "a.tsv:1", name: "1", "b" if columns else "1": "x"}
        assert lines(tmp_path)[0] == row | {"outputs": "ASK 1"}
        shutil.rmtree(tmp_path / "out")


def test_a_damaged_file_is_named_and_the_rest_is_done(tmp_path):
    tables(tmp_path)
    whole = gzip.compress(b"n,b\n1,2\n" * 50)
    (tmp_path / "c.csv.gz").write_bytes(whole[:-12])
    asked = job(tmp_path, "*.csv*")
    with pytest.raises(
        UserError, match="1 of the input's files .*c.csv.gz cannot be d"
    ):
        finished(asked)
    assert len(lines(tmp_path)) == 13
    (tmp_path / "c.csv.gz").write_bytes(whole)
    repaired = job(tmp_path, "*.csv*")
    assert {x.file for x in repaired.missing()} == {2}
    assert finished(repaired)["answers"] == 13 + 99


def test_a_part_that_cannot_be_written_ends_the_job(tmp_path):
    """Else a full disk would be a damaged input, after all rows were answered."""
    tables(tmp_path)
    asked, answered = job(tmp_path), []

    def answer(texts):
        answered.extend(texts)
        return upper(texts)

    place = tmp_path / "out" / "answers-00000-00001.jsonl"
    place.mkdir()  # as a full disk: it cannot be written
    with pytest.raises(UserError, match="^Cannot write .*answers-00000-00001.jsonl"):
        finished(asked, answer)
    assert len(answered) == 8
    place.rmdir()
    assert finished(job(tmp_path))["answers"] == len(lines(tmp_path)) == 13


def test_a_damaged_page_of_parquet(tmp_path):
    table = pyarrow.table(
        {"n": [*range(1000)], "s": [f"text {i}" for i in range(1000)]}
    )
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=100)
    whole = path.read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole)
    half = len(whole) // 2
    path.write_bytes(whole[: half - 200] + b"\xff" * 200 + whole[half:])
    asked = job(tmp_path, "*.parquet", rows=100)
    with pytest.raises(UserError, match="1 of the input's files .*a.parquet' is not"):
        finished(asked)
    assert 1000 < len(lines(tmp_path)) < 2000
    path.write_bytes(whole)
    assert finished(job(tmp_path, "*.parquet", rows=100))["answers"] == 2000
    assert [row["n"] for row in lines(tmp_path)] == [*range(1000)] * 2


def test_a_file_that_changes_while_it_is_read(tmp_path):
    tables(tmp_path)
    path, text = tmp_path / "a.csv", "n,b\n" + "".join(f"{i},z\n" for i in range(10))
    changes = {
        "grown": lambda: path.write_text(path.read_text() + "99,x\n"),
        "cut": lambda: path.write_text("n,b\n1,x\n"),
        "replaced": lambda: path.write_text(text),
        "removed": path.unlink,
    }
    for name, change in changes.items():
        tables(tmp_path)
        asked = job(tmp_path, step=name)
        asked.write(asked.parts[:1], upper)
        change()
        problem = "cannot be read" if name == "removed" else "has changed since its"
        with pytest.raises(
            UserError, match=f"1 of the input's files .*a.csv {problem}"
        ):
            finished(asked)
        assert [x["b"] for x in lines(tmp_path)][-3:] == ["y0", "y1", "y2"]
        path.write_text(text)
        assert finished(job(tmp_path, step=name))["answers"] == 13
        assert [x["b"] for x in lines(tmp_path)] == ["z"] * 10 + ["y0", "y1", "y2"]
        shutil.rmtree(tmp_path / "out")


def test_a_file_is_read_a_few_times_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(table_rows, "_STRETCHES", 8)
    (tmp_path / "a.csv").write_text("n\n" + "".join(f"{i}\n" for i in range(100)))
    asked, read = job(tmp_path, rows=1), []
    records = TableFile.records

    def counted(self, skip=0):
        read.append(skip)
        return records(self, skip)

    monkeypatch.setattr(TableFile, "records", counted)
    asked.write([part for part in asked.parts if part.number % 3 == 0], upper)
    finished(asked)  # Parts between others are done.
    # 13 parts a stretch, which begins at its first part that is missing
    assert read == [0, *(n + (n % 3 == 0) for n in range(0, 100, 13))]
    assert [row["n"] for row in lines(tmp_path)] == [*map(str, range(100))]


def test_keys_of_files_with_one_name(tmp_path):
    for name in "cd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text("n\n1\n")
    finished(job(tmp_path, "*/a.csv"))
    assert [row["key"] for row in lines(tmp_path)] == ["c/a.csv:2", "d/a.csv:2"]


def test_columns_that_do_not_fit(tmp_path):
    (tmp_path / "a.csv").write_text("n,outputs\n1,2\n")
    with pytest.raises(UserError, match="a.csv has a column 'outputs', as the answers"):
        job(tmp_path)
    with pytest.raises(UserError, match="no column 'z', which '{z}' names. It has: n"):
        job(tmp_path, templates=["{z}"])
    (tmp_path / "b.jsonl").write_text("no JSON\n" * 150 + '{"n": 1}\n')
    assert finished(job(tmp_path, "b.jsonl")) == {
        "answers": 1,
        "bad": 150,
        "trimmed": 0,
    }


def test_a_column_that_comes_late(tmp_path):
    def write(number):
        rows = [{"m": i} for i in range(number)] + [{"n": 1}]
        (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in rows))

    write(999)
    counts = {"answers": 1, "bad": 999, "trimmed": 0}
    assert finished(job(tmp_path, "a.jsonl", rows=1_000)) == counts
    shutil.rmtree(tmp_path / "out")
    write(1_000)
    late = "a.jsonl .the first 1,000 rows must show each column. has no column 'n'"
    with pytest.raises(UserError, match=late):
        job(tmp_path, "a.jsonl")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rows": 5}, "it differs in rows. Choose a new folder"),
        ({"step": 7}, "differs in step"),
        ({"pattern": "b.csv"}, "differs in .*a.csv"),
        ({"templates": ["{b}"]}, "differs in templates"),
    ],
)
def test_a_folder_with_other_answers(tmp_path, options, message):
    tables(tmp_path)
    job(tmp_path)
    with pytest.raises(UserError, match=message):
        job(tmp_path, **options)


def test_a_file_that_has_grown_between_runs(tmp_path):
    tables(tmp_path)
    job(tmp_path)
    with (tmp_path / "a.csv").open("a") as file:
        file.write("99,x\n")
    with pytest.raises(UserError, match="differs in .*a.csv"):
        job(tmp_path)


def test_a_folder_with_other_files(tmp_path):
    tables(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.jsonl").write_text("")
    with pytest.raises(UserError, match="out has other files, such as mine.jsonl"):
        job(tmp_path)


def load():
    LOADED.append(1)

    def answer(texts):
        return upper(texts)

    return answer


def test_beam_loads_the_model_once(tmp_path):
    pytest.importorskip("apache_beam", reason="pip install 'remixer_tf[beam]'")
    from remixer_tf.serving.beam_rows import answer_parts

    tables(tmp_path)
    LOADED.clear()
    asked = job(tmp_path)
    answer_parts(asked, load, [])
    assert asked.finish()["answers"] == len(lines(tmp_path)) == 13
    assert len(LOADED) == 1


def test_options_of_rows(tmp_path):
    run = str(tmp_path)
    with pytest.raises(
        UserError, match="--inputs is for the rows of a table: add --beam"
    ):
        run_command("infer", [f"--model_dir={run}", "--inputs={a}"])
    with pytest.raises(UserError, match="--beam reads files and writes a folder"):
        run_command("score", [f"--model_dir={run}", "--beam"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train_run(str(folder), "bytes")
    texts = [f"A cat saw {'the ' * (i % 7)}dog {i} ." for i in range(90)]
    for part in range(2):
        (folder / f"in-{part}.txt").write_text("\n".join(texts[part::2]) + "\n")
        rows = [f"{text}\ta cat" for text in texts[part::2]]
        (folder / f"pairs-{part}.txt").write_text("\n".join(rows) + "\n")
    return folder


def answers_of_lines(run, command, name):
    """What the command says of the lines of two files, without Beam."""
    found = []
    for part in range(2):
        output = run / "lines"
        named = f"--input={run / f'{name}-{part}.txt'}", f"--output={output}"
        run_command(command, [f"--model_dir={run}", *named])
        found += output.read_bytes().decode(errors="replace").split("\n")[:-1]
    return found


def outputs(folder):
    texts = [row["outputs"] for row in lines(folder)]
    return [text.replace("\n", "\\n").replace("\r", "\\r") for text in texts]


@pytest.mark.slow
def test_the_answers_are_those_of_lines(run, tmp_path):
    pytest.importorskip("apache_beam", reason="pip install 'remixer_tf[beam]'")
    named = f"--input={run / 'in-*.txt'}", f"--output={tmp_path / 'out'}"
    run_command("infer", [f"--model_dir={run}", *named, "--beam", "--shard_rows=20"])
    assert outputs(tmp_path) == answers_of_lines(run, "infer", "in")
    named = f"--input={run / 'pairs-*.txt'}", f"--output={tmp_path / 'scores'}"
    run_command("score", [f"--model_dir={run}", *named, "--beam"])
    expected = answers_of_lines(run, "score", "pairs")
    (tmp_path / "scores").rename(tmp_path / "out2")
    texts = [x.read_text() for x in sorted((tmp_path / "out2").glob("scores-*"))]
    rows = [json.loads(line) for line in "".join(texts).splitlines()]
    for row, line in zip(rows, expected, strict=True):
        value, tokens, greedy = line.split("\t")
        assert row["log_likelihood"] == pytest.approx(float(value), abs=2e-4)
        assert (row["tokens"], row["greedy"]) == (int(tokens), greedy == "1")


@pytest.mark.slow
def test_another_run_and_two_jobs(run, tmp_path):
    pytest.importorskip("apache_beam", reason="pip install 'remixer_tf[beam]'")
    named = f"--input={run / 'pairs-*.txt'}", f"--output={tmp_path / 'out'}", "--beam"
    command = [f"--model_dir={run}", *named, "--inputs=", "--targets={targets}"]
    with RunLock(str(run), does="answers rows", option="--output"):
        (tmp_path / "out").mkdir()
        (run / "run.lock").rename(tmp_path / "out" / "run.lock")
        other = f"{os.getpid()} on .* answers rows in .*out.* set another --output"
        with pytest.raises(UserError, match=other):
            run_command("score", command)
        (tmp_path / "out" / "run.lock").rename(run / "run.lock")
    run_command("score", command)
    with pytest.raises(UserError, match="differs in configuration"):
        run_command("score", [*command, "--gin.Run.seed=3"])
    checksums = next((run / "checkpoints").glob("*/checksums.json"))
    text = checksums.read_text()
    checksums.write_text('{"crc32": {"other": 1}}')
    with pytest.raises(UserError, match="differs in weights"):
        run_command("score", command)
    checksums.write_text(text)


@pytest.mark.slow
@pytest.mark.slower
def test_a_job_that_is_killed_goes_on(run, tmp_path):
    pytest.importorskip("apache_beam", reason="pip install 'remixer_tf[beam]'")
    root = pathlib.Path(__file__).parents[2]
    command = [sys.executable, "-m", "remixer_tf", "infer", f"--model_dir={run}"]
    command += [f"--input={run / 'in-*.txt'}", f"--output={tmp_path / 'out'}"]
    command += ["--beam", "--direct_num_workers=2", "--shard_rows=5"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    killed = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 200
    while not lines(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    done = {
        x: x.stat().st_mtime_ns for x in (tmp_path / "out" / "parts").glob("*.json")
    }
    assert done
    subprocess.run(command, env=environment, check=True, timeout=200)
    assert outputs(tmp_path) == answers_of_lines(run, "infer", "in")
