"""Answers and scores of the rows of tables, in shards that appear whole.

The output folder has

    plan.json                       the input's files, and what is asked of them
    answers-00002-00007.jsonl, ...  of the third file, the eighth part
    bad_rows.jsonl                  file, line and reason of each bad row
    summary.json                    numbers of rows, when all is done

and until then `parts/`, what is known of each part that is done. A worker that a runner
starts again writes the same files. The same command again writes what is missing.
"""

import itertools
import json
import os
from typing import NamedTuple

import tensorflow as tf

from remixer_tf.checkpoints.whole_folder import (
    describe,
    finite,
    read_json,
    write_json,
    write_whole,
)
from remixer_tf.errors import UserError, shorten
from remixer_tf.serving.text_to_text import AHEAD
from remixer_tf.tasks.cells import cell_text, is_utf8
from remixer_tf.tasks.opening import open_text, plain_name
from remixer_tf.tasks.table_files import (
    Line,
    TableFile,
    describe_columns,
    lines_of,
    shards_of,
)
from remixer_tf.tasks.tables import fill, template_columns

_PLAN, _SUMMARY, _BAD, _PARTS = "plan.json", "summary.json", "bad_rows.jsonl", "parts"
_WRITER = "writer.json"
_FIRST = 100  # records that show which columns there are
_AT_ONCE = 64 * AHEAD  # records that are sorted by length


class Part(NamedTuple):
    """Records of a file that one worker answers, written to one file."""

    file: int  # its place among the input's files
    number: int  # from 0, in the file
    path: str
    first: int  # records before it
    records: int

    @property
    def name(self):
        """Two numbers of five digits."""
        return f"{self.file:05d}-{self.number:05d}"


class TableJob:
    """What is asked of a table, and the folder that the answers go to.

    It can be pickled.

    Args:
        input: str, a file, a folder or a pattern, see `read_table`; or of .txt files,
            whose lines are inputs, perhaps with a tab and targets.
        output: str, a folder.
        templates: list of str, of the inputs, and perhaps of the targets, see
            `table_task`. Lines of .txt files need none.
        kind: str, the start of the files' names.
        rows: int, records in a part.
        asked: dictionary of what else the answers depend on.

    Raises:
        FileNotFoundError: no file has such a name.
        ValueError: the folder has answers of another job, or one that goes on, or the
            first row lacks a column.
    """

    def __init__(self, input, output, templates, kind, rows, asked):
        self.output, self.templates, self.kind = output, templates, kind
        files = shards_of(input)
        self._claim()
        asked = {"templates": templates, "rows": rows, **asked}
        plan = {"asked": asked, "files": self._describe(files)}
        self._compare(read_json(self._path(_PLAN)), plan)
        write_json(self._path(_PLAN), plan)
        self.damaged = {
            path: described["error"]
            for path, described in plan["files"].items()
            if "error" in described
        }
        self.parts = [
            Part(file, number, path, first, min(rows, described["records"] - first))
            for file, (path, described) in enumerate(plan["files"].items())
            for number, first in enumerate(range(0, described.get("records", 0), rows))
        ]

    def _path(self, *names):
        return os.path.join(self.output, *names)

    def _claim(self):
        """Makes the folder, and notes that this process writes into it."""
        if tf.io.gfile.exists(self.output) and not tf.io.gfile.isdir(self.output):
            raise UserError(f"--output must be a folder. {self.output!r} is a file.")
        tf.io.gfile.makedirs(self._path(_PARTS))
        writer = read_json(self._path(_WRITER))
        if (
            writer
            and writer["pid"] != os.getpid()
            and describe(writer["pid"]) == writer
        ):
            raise UserError(
                f"the process {writer['pid']} writes to {self.output} now. Wait for "
                "it, or choose another folder."
            )
        write_json(self._path(_WRITER), describe(os.getpid()))

    def _describe(self, files):
        """Returns {path: records, size and time, or an error} of the input's files."""
        found = {}
        for path in files:
            try:
                stat = tf.io.gfile.stat(path)
                file = open_rows(path, self.templates)
                records = file.count()
                found[path] = {"bytes": stat.length, "modified": stat.mtime_nsec}
                found[path]["records"] = records
            except UserError as error:
                found[path] = {"error": str(error)}
                continue
            for _ in itertools.islice(file.records(), _FIRST):  # JSON has no header
                pass
            self._check_columns(file, records)
        return found

    def _check_columns(self, file, records):
        for template in self.templates if records else ():
            for name in template_columns(template):
                if name not in file.names:
                    raise UserError(
                        f"{file.path} has no column {name!r}, which {template!r} "
                        f"names. {describe_columns([*file.names])} Name others with "
                        "--inputs='text with {column}'."
                    )

    def _compare(self, saved, plan):
        if saved is None:
            others = [
                x for x in tf.io.gfile.listdir(self.output) if x.endswith(".jsonl")
            ]
            if others:
                raise UserError(
                    f"{self.output} has other files, such as {others[0]}. Choose a new "
                    "folder for --output."
                )
            return
        before, now = saved["files"], plan["files"]
        differs = [
            x
            for x in {*saved["asked"], *plan["asked"]}
            if saved["asked"].get(x) != plan["asked"].get(x)
        ]
        differs += [x for x in before if x not in now]
        differs += [
            x
            for x, y in now.items()
            if "error" not in before.get(x, {}) and before.get(x) != y
        ]
        if differs:
            raise UserError(
                f"{self.output} has answers of another input or run: it differs in "
                f"{shorten(sorted(differs))}. Choose a new folder for --output, or "
                "remove this one."
            )

    def missing(self):
        """Returns the parts that are not done, a list."""
        if tf.io.gfile.exists(self._path(_SUMMARY)):
            return []
        return [x for x in self.parts if self._done(x) is None]

    def _done(self, part):
        done = read_json(self._path(_PARTS, f"{part.name}.json"))
        return None if done is None or "error" in done else done

    def write(self, part, answer):
        """Writes the answers to a part's rows.

        Args:
            part: a `Part`.
            answer: a function of a list of tuples, the texts of the templates. It
                returns a list of dictionaries, the columns of the answers, and a list
                of whether an input was too long. Or a str for a row, why it is bad.
        """
        bad, lines, trimmed = [], [], 0

        def is_bad(line, reason):
            bad.append({"file": part.path, "line": line.number, "reason": reason})

        file = open_rows(part.path, self.templates)
        records = itertools.islice(file.records(part.first), part.records)
        while True:
            try:
                chunk = list(itertools.islice(records, _AT_ONCE))
            except UserError as error:
                write_json(
                    self._path(_PARTS, f"{part.name}.json"), {"error": str(error)}
                )
                return
            if not chunk:
                break
            rows, texts = [], []
            for line in itertools.chain.from_iterable(chunk):
                try:
                    texts.append(tuple(fill(x, line) for x in self.templates))
                    rows.append((line, _kept(line, file.columns, part.path)))
                except UserError as error:
                    is_bad(line, str(error))
            answers, long = answer(texts) if texts else ([], [])
            for (line, row), found in zip(rows, answers, strict=True):
                if isinstance(found, str):
                    is_bad(line, found)
                elif taken := [name for name in found if name in row]:
                    is_bad(line, f"a column is called {taken[0]!r}, as the answer's")
                else:
                    try:
                        lines.append(_as_json(row | found))
                    except UserError as error:
                        is_bad(line, str(error))
            trimmed += sum(long)
        self._write_lines(self._path(_PARTS, f"{part.name}.bad"), map(_as_json, bad))
        self._write_lines(self._path(f"{self.kind}-{part.name}.jsonl"), lines)
        done = {"answers": len(lines), "bad": len(bad), "trimmed": trimmed}
        write_json(self._path(_PARTS, f"{part.name}.json"), done)

    def _write_lines(self, path, lines):
        write_whole(path, "".join(f"{line}\n" for line in lines))

    def finish(self):
        """Returns the numbers of rows, a dictionary, when all parts are done.

        Raises a ValueError that names the files that could not be read.
        """
        summary = read_json(self._path(_SUMMARY))
        if summary is None:
            done = [self._done(part) for part in self.parts]
            damaged = self.damaged | {
                part.path: (self._error(part) or "it was not answered")
                for part, found in zip(self.parts, done, strict=True)
                if found is None
            }
            tf.io.gfile.remove(self._path(_WRITER))
            if damaged:
                errors = shorten([*damaged.values()], "; ")
                raise UserError(
                    f"{len(damaged)} of the input's files could not be read, and the "
                    f"others are done: {errors} Correct them, and start the same "
                    "command again."
                )
            summary = {
                k: sum(x[k] for x in done) for k in ("answers", "bad", "trimmed")
            }
            self._write_bad_rows()
            write_json(self._path(_SUMMARY), summary)
        elif tf.io.gfile.exists(self._path(_WRITER)):
            tf.io.gfile.remove(self._path(_WRITER))
        if tf.io.gfile.exists(self._path(_PARTS)):
            tf.io.gfile.rmtree(self._path(_PARTS))
        return summary

    def _error(self, part):
        return (read_json(self._path(_PARTS, f"{part.name}.json")) or {}).get("error")

    def _write_bad_rows(self):
        def texts():
            for part in self.parts:
                with tf.io.gfile.GFile(self._path(_PARTS, f"{part.name}.bad")) as file:
                    yield file.read()

        write_whole(self._path(_BAD), "".join(texts()))


def open_rows(path, templates):
    """Opens a file of rows, a `TableFile` or the like."""
    if plain_name(path).endswith(".txt"):
        return _TextLines(path, ["inputs", "targets"][: len(templates)])
    return TableFile(path)


class _TextLines:
    """Lines of a text file as rows: inputs, and perhaps a tab and targets."""

    def __init__(self, path, columns):
        self.path, self.names, self.columns = path, columns, columns

    def count(self):
        return sum(1 for _ in lines_of(open_text(self.path)))

    def records(self, skip=0):
        lines = enumerate(lines_of(open_text(self.path)), 1)
        for number, line in itertools.islice(lines, skip, None):
            parts = line.split("\t", 1) if len(self.columns) > 1 else [line]
            if not is_utf8(line):
                yield [Line(number, None, "invalid UTF-8")]
            elif len(parts) < len(self.columns):
                yield [Line(number, None, "no tab")]
            else:
                yield [Line(number, dict(zip(self.columns, parts, strict=True)))]


def _kept(line, columns, path):
    """Returns the columns of a row for its answer, with a `key`, unless it has one."""
    key = {"key": f"{os.path.basename(path)}:{line.number}"}
    values = line.values
    return key | {name: values[name] for name in columns or values if name in values}


def _as_json(row):
    return json.dumps(finite(row), ensure_ascii=False, default=cell_text)


def answers_of(model, batch_size, scores=False, refuses_long=False):
    """Returns the argument `answer` of `TableJob.write` for a `TextAnswers`.

    The columns are `outputs`, and `scores` if they are asked for. A search with several
    answers makes lists of both.
    """

    def answer(texts):
        found = model.answer_all([text.encode() for (text,) in texts], batch_size)
        outputs = found.get("all_outputs", found["outputs"]).tolist()
        values = found.get("all_scores", found["scores"]).tolist()
        columns = [
            {"outputs": _decoded(x)} | ({"scores": y} if scores else {})
            for x, y in zip(outputs, values, strict=True)
        ]
        return _refused(columns, found["trimmed"].tolist(), refuses_long)

    return answer


def scores_of(scorer, batch_size, refuses_long=False):
    """Returns the argument `answer` of `TableJob.write` for a `TextScorer`.

    The columns are `log_likelihood`, `tokens` and `greedy`, see `write_scores`.
    """

    def answer(texts):
        pairs = [scorer.encode(*(text.encode() for text in row)) for row in texts]
        order = sorted(range(len(pairs)), key=lambda i: sum(map(len, pairs[i])))
        found = scorer.score([pairs[i] for i in order], batch_size)
        by_place = dict(zip(order, found, strict=True))
        names = "log_likelihood", "tokens", "greedy"
        rows = [by_place[i] for i in range(len(pairs))]
        columns = [dict(zip(names, row[:3], strict=True)) for row in rows]
        return _refused(columns, [row[3] for row in rows], refuses_long)

    return answer


def _refused(columns, trimmed, refuses_long):
    if not refuses_long:
        return columns, trimmed
    reason = "longer than the model reads"
    found = [
        reason if long else row for row, long in zip(columns, trimmed, strict=True)
    ]
    return found, [False] * len(found)


def _decoded(outputs):
    if isinstance(outputs, list):
        return [*map(_decoded, outputs)]
    return outputs.decode(errors="replace")
