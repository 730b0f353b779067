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
    finite,
    read_json,
    whole_file,
    write_json,
    write_whole,
)
from remixer_tf.errors import StorageError, UserError, shorten
from remixer_tf.serving.text_to_text import AHEAD
from remixer_tf.tasks.cells import cell_text, is_utf8
from remixer_tf.tasks.opening import open_text, plain_name
from remixer_tf.tasks.table_files import (
    Line,
    TableFile,
    describe_columns,
    format_of,
    lines_of,
    shards_of,
)
from remixer_tf.tasks.tables import fill, template_columns

SCORES = "log_likelihood", "tokens", "greedy"
_PLAN, _SUMMARY, _BAD, _PARTS = "plan.json", "summary.json", "bad_rows.jsonl", "parts"
_AT_ONCE = 64 * AHEAD  # records that are sorted by length
_STRETCHES = 64  # of a file; each reads all that is before it


class Part(NamedTuple):
    """Records of a file that are answered into one file."""

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

    It can be pickled. One process at a time has a job in a folder, see `RunLock`.

    Args:
        input: str, a file, a folder or a pattern, see `read_table`; or of .txt files,
            whose lines are inputs, perhaps with a tab and targets.
        output: str, a folder.
        templates: list of str, of the inputs, and perhaps of the targets, see
            `table_task`. Lines of .txt files need none.
        kind: str, the start of the files' names.
        rows: int, records in a part.
        asked: dictionary of what else the answers depend on, for JSON.
        columns: names of the answers' columns, which the table may not have.
        read: dictionary, arguments of `TableFile` for .tsv and .csv files: `header` and
            `columns`.

    Raises:
        FileNotFoundError: no file has such a name.
        ValueError: the folder has answers of another job, or the first rows lack a
            column.
    """

    def __init__(
        self, input, output, templates, kind, rows, asked, columns=(), read=None
    ):
        self.output, self.templates, self.kind = output, templates, kind
        self._columns, self._read = columns, read or {}
        files = shards_of(input)
        asked = {"templates": templates, "rows": rows, "read": self._read, **asked}
        before = self._saved(asked)
        plan = {"asked": asked, "files": self._describe(files, before)}
        self._compare(before, plan["files"])
        if not tf.io.gfile.exists(self._path(_SUMMARY)):
            tf.io.gfile.makedirs(self._path(_PARTS))
        write_json(self._path(_PLAN), plan)
        self.damaged = {
            path: described["error"]
            for path, described in plan["files"].items()
            if "error" in described
        }
        self._files = plan["files"]
        self._names = dict(zip(self._files, _short_names([*self._files]), strict=True))
        self.parts = [
            Part(file, number, path, first, min(rows, described["records"] - first))
            for file, (path, described) in enumerate(plan["files"].items())
            for number, first in enumerate(range(0, described.get("records", 0), rows))
        ]

    def _path(self, *names):
        return os.path.join(self.output, *names)

    def _saved(self, asked):
        """Returns what the plan in the folder says of files; {} if there is none."""
        saved = read_json(self._path(_PLAN))
        if saved is None:
            there = tf.io.gfile.isdir(self.output)
            names = tf.io.gfile.listdir(self.output) if there else []
            if others := [x for x in names if x.endswith(".jsonl")]:
                raise UserError(
                    f"{self.output} has other files, such as {others[0]}. Choose a new "
                    "folder for --output."
                )
            return {}
        before = saved["asked"]
        self._refuse([x for x in asked if before.get(x) != asked[x]])
        return saved["files"]

    def _refuse(self, differs):
        if differs:
            raise UserError(
                f"{self.output} has answers of another input or run: it differs in "
                f"{shorten(sorted(differs))}. Choose a new folder for --output, or "
                "remove this one."
            )

    def _describe(self, files, before):
        """Returns {path: records, size and time, or an error} of the input's files."""
        found = {}
        for path in files:
            try:
                state = _state(path)
                if state.items() <= before.get(path, {}).items():
                    found[path] = before[path]
                    continue
                file = open_rows(path, self.templates, self._read)
                found[path] = state | {"records": file.count()}
                names, place = file.first_columns()
            except UserError as error:
                found.setdefault(path, {"error": str(error)})
                continue
            self._check_columns(path, place, names)
        return found

    def _check_columns(self, path, place, names):
        if not names:  # No row can be read, and each says why.
            return
        for template in self.templates:
            for name in template_columns(template):
                if name not in names:
                    raise UserError(
                        f"{place} has no column {name!r}, which {template!r} "
                        f"names. {describe_columns(names)} Name others with "
                        "--inputs='text with {column}'."
                    )
        for name in self._columns:
            if name in names:
                raise UserError(
                    f"{path} has a column {name!r}, as the answers have. Rename it."
                )

    def _compare(self, before, now):
        """Compares files with those of the plan.

        Where parts of a file could not be read, it may be another one now. Then all its
        parts are done again.
        """
        failed = {x["path"] for x in self._errors()}
        changed = [x for x, y in before.items() if now.get(x) != y]
        changed += [x for x in now if before and x not in before]
        was_bad = failed | {x for x, y in before.items() if "error" in y}
        self._refuse([x for x in changed if x not in was_bad or x not in now])
        for file, path in enumerate(now):
            if path in failed and path in changed:
                for place in (self._path(), self._path(_PARTS)):
                    for name in tf.io.gfile.listdir(place):
                        if name.removeprefix(f"{self.kind}-").startswith(
                            f"{file:05d}-"
                        ):
                            tf.io.gfile.remove(os.path.join(place, name))

    def _errors(self):
        """Returns what is known of parts that could not be read, dictionaries."""
        names = [x for x in self._of_parts() if x.endswith(".error")]
        return [read_json(self._path(_PARTS, name)) for name in names]

    def _of_parts(self):
        place = self._path(_PARTS)
        return {*tf.io.gfile.listdir(place)} if tf.io.gfile.isdir(place) else set()

    def missing(self):
        """Returns the parts that are not done, a list.

        Raises a ValueError if the folder lacks files that its summary counts.
        """
        if not tf.io.gfile.exists(self._path(_SUMMARY)):
            return self._undone(self.parts)
        if lost := self._without_answers(self.parts):
            names = [self._answers(part) for part in lost]
            raise UserError(
                f"{self.output} lacks {shorten(names)}, which its {_SUMMARY} counts. "
                "Copy the files there again, or remove the folder and start the same "
                "command again."
            )
        return []

    def _answers(self, part):
        return f"{self.kind}-{part.name}.jsonl"

    def _without_answers(self, parts):
        there = {*tf.io.gfile.listdir(self.output)}
        return [part for part in parts if self._answers(part) not in there]

    def _undone(self, parts):
        done, lost = self._of_parts(), {*self._without_answers(parts)}
        return [x for x in parts if f"{x.name}.json" not in done or x in lost]

    def stretches(self):
        """Returns the missing parts as lists of some that follow each other in a file.

        A worker reads a file from its start to find a place in it. At most 64 stretches
        of a file keep that in proportion to its size.
        """
        numbers = {}
        for part in self.parts:
            numbers[part.file] = part.number + 1

        def stretch(part):
            return part.file, part.number // -(-numbers[part.file] // _STRETCHES)

        return [list(x) for _, x in itertools.groupby(self.missing(), stretch)]

    def write(self, parts, answer):
        """Writes the answers to the rows of a stretch.

        Args:
            parts: list of `Part`, see `stretches`. Those that are done stay.
            answer: a function of a list of tuples, the texts of the templates. It
                returns a list of dictionaries, the columns of the answers, and a list
                of whether an input was too long. Or a str for a row, why it is bad.
        """
        parts = self._undone(parts)
        records, place = None, 0
        for number, part in enumerate(parts):
            try:
                if records is None:
                    self._check_state(part.path)
                    file = open_rows(part.path, self.templates, self._read)
                    records, place = file.records(part.first), part.first
                for _ in itertools.islice(records, part.first - place):
                    pass  # parts between them that are done
                found = self._answered(part, records, file.columns, answer)
                place = part.first + part.records
            except UserError as error:
                failed = {"path": part.path, "error": str(error)}
                for left in parts[number:]:
                    write_json(self._path(_PARTS, f"{left.name}.error"), failed)
                return
            self._write_part(part, *found)  # A full disk ends the job.

    def _answered(self, part, records, columns, answer):
        """Returns bad rows and answers, lists of str, and how many were trimmed."""
        bad, lines, trimmed = [], [], 0

        def is_bad(line, reason):
            bad.append({"file": part.path, "line": line.number, "reason": reason})

        records = itertools.islice(records, part.records)
        while chunk := list(itertools.islice(records, _AT_ONCE)):
            rows, texts = [], []
            for line in itertools.chain.from_iterable(chunk):
                try:
                    texts.append(tuple(fill(x, line) for x in self.templates))
                    rows.append((line, _kept(line, columns, self._names[part.path])))
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
        self._check_state(part.path)
        return [*map(_as_json, bad)], lines, trimmed

    def _write_part(self, part, bad, lines, trimmed):
        self._write_lines(self._path(_PARTS, f"{part.name}.bad"), bad)
        self._write_lines(self._path(self._answers(part)), lines)
        done = {"answers": len(lines), "bad": len(bad), "trimmed": trimmed}
        write_json(self._path(_PARTS, f"{part.name}.json"), done)

    def _check_state(self, path):
        """Raises a UserError if a file is not the one whose records were counted."""
        if not _state(path).items() <= self._files[path].items():
            raise UserError(f"{path} has changed since its rows were counted.")

    def _write_lines(self, path, lines):
        write_whole(path, "".join(f"{line}\n" for line in lines))

    def finish(self):
        """Returns the numbers of rows, a dictionary, when all parts are done.

        Raises a ValueError that names the files that could not be read.
        """
        summary = read_json(self._path(_SUMMARY))
        if summary is None:
            errors = {x["path"]: x["error"] for x in self._errors()}
            undone = {x.path: "it was not answered." for x in self.missing()}
            if (
                damaged := self.damaged
                | undone
                | {k: x for k, x in errors.items() if k in undone}
            ):
                raise UserError(
                    f"{len(damaged)} of the input's files could not be read, and the "
                    f"others are done: {shorten([*damaged.values()], '; ')} Correct "
                    "them, and start the same command again."
                )
            done = [
                read_json(self._path(_PARTS, f"{part.name}.json"))
                for part in self.parts
            ]
            summary = {
                k: sum(x[k] for x in done) for k in ("answers", "bad", "trimmed")
            }
            self._write_bad_rows()
            write_json(self._path(_SUMMARY), summary)
        if tf.io.gfile.exists(self._path(_PARTS)):
            tf.io.gfile.rmtree(self._path(_PARTS))
        return summary

    def _write_bad_rows(self):
        with (
            whole_file(self._path(_BAD)) as place,
            tf.io.gfile.GFile(place, "w") as all,
        ):
            for part in self.parts:
                with tf.io.gfile.GFile(self._path(_PARTS, f"{part.name}.bad")) as file:
                    all.write(file.read())


def _state(path):
    """Returns a file's size and time; raises a StorageError if it has none."""
    try:
        found = tf.io.gfile.stat(path)
    except tf.errors.OpError as error:
        raise StorageError(f"{path} cannot be read: {error.message}.") from None
    return {"bytes": found.length, "modified": found.mtime_nsec}


def _short_names(paths):
    """Returns the files' names, with those of folders if some are alike."""
    names = [os.path.basename(path) for path in paths]
    if len({*names}) < len(names):
        start = os.path.commonprefix(paths).rpartition("/")[0]
        names = [path.removeprefix(start).removeprefix("/") for path in paths]
    return names


def open_rows(path, templates, read):
    """Opens a file of rows, a `TableFile` or the like, see `TableJob`."""
    if plain_name(path).endswith(".txt"):
        return _TextLines(path, ["inputs", "targets"][: len(templates)])
    return TableFile(path, **read if format_of(path) in (".tsv", ".csv") else {})


class _TextLines:
    """Lines of a text file as rows: inputs, and perhaps a tab and targets."""

    def __init__(self, path, columns):
        self.path, self.names, self.columns = path, columns, columns

    def count(self):
        return sum(1 for _ in lines_of(open_text(self.path)))

    def first_columns(self):
        return self.names, self.path

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


def _kept(line, columns, file):
    """Returns the columns of a row for its answer, with a `key`, unless it has one."""
    key = {"key": f"{file}:{line.number}"}
    values = line.values
    return key | {name: values[name] for name in columns or values if name in values}


def _as_json(row):
    text = json.dumps(finite(row), ensure_ascii=False, default=cell_text)
    if not is_utf8(text):
        raise UserError("invalid UTF-8")
    return text


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

    The columns are `SCORES`, see `write_scores`.
    """

    def answer(texts):
        pairs = [scorer.encode(*(text.encode() for text in row)) for row in texts]
        order = sorted(range(len(pairs)), key=lambda i: sum(map(len, pairs[i])))
        found = scorer.score([pairs[i] for i in order], batch_size)
        by_place = dict(zip(order, found, strict=True))
        rows = [by_place[i] for i in range(len(pairs))]
        columns = [dict(zip(SCORES, row[:3], strict=True)) for row in rows]
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
