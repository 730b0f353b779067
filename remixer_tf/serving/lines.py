"""Lines of a file, of standard input or of a terminal: answered or scored."""

import contextlib
import io
import itertools
import math
import os
import stat
import sys

from remixer_tf import console
from remixer_tf.checkpoints.whole_folder import whole_file
from remixer_tf.errors import StorageError, UserError
from remixer_tf.serving.text_to_text import AHEAD


def answer_lines(model, lines, output, batch_size, scores=False, refuses_long=False):
    """Writes the answer to each line, in order.

    Of a file it reads `AHEAD` batches at a time, and answers lines of about the same
    length together; of a pipe or a terminal it answers what has come.

    Several answers to a question have a line each. A line is empty where a search found
    fewer. Line breaks in an answer are written as `\\n` or `\\r`. Standard error
    reports how many lines were trimmed.

    Args:
        model: a `TextAnswers`.
        lines: iterable of bytes. A line break at their end is removed.
        output: a binary file.
        batch_size: int.
        scores: bool, whether to write a tab and the score after each answer.
        refuses_long: bool, whether a line that would be trimmed is a ValueError.
    """
    ahead = batch_size * (AHEAD if _is_file(lines) else 1)
    lines, total, over = iter(lines), 0, 0
    longest = f"{model.input_length} tokens"
    while batch := list(itertools.islice(lines, ahead)):
        texts = [x.removesuffix(b"\n").removesuffix(b"\r") for x in batch]
        answers = model.answer_all(texts, batch_size)
        trimmed = answers["trimmed"]
        if refuses_long and trimmed.any():
            raise _too_long(total + 1 + trimmed.argmax(), longest)
        texts_and_scores = (
            answers.get(f"all_{name}", answers[name]).ravel()
            for name in ("outputs", "scores")
        )
        for text, score in zip(*texts_and_scores, strict=True):
            text = text.replace(b"\n", rb"\n").replace(b"\r", rb"\r")
            output.write(text + (b"\t%.4f" % score if scores else b"") + b"\n")
        output.flush()
        total += len(batch)
        over += int(trimmed.sum())
    if over:
        _warn(over, total, f"{longest}: they were trimmed, as in training")


def _is_file(lines):
    """Whether lines come from a file that is there, and not as somebody writes them."""
    try:
        return stat.S_ISREG(os.fstat(lines.fileno()).st_mode)
    except (AttributeError, OSError):  # no file, or one in memory
        return False


def read_pairs(scorer, lines):
    """Yields the ids of lines (bytes) of inputs, a tab and targets, as two lists.

    Raises a ValueError if a line has no tab.
    """
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        inputs, tab, targets = line.partition(b"\t")
        if not tab:
            raise UserError(
                f"line {number} has no tab. Expected: inputs (or nothing), a tab, and "
                f"the targets to score. Received: {line[:200]!r}"
            )
        yield scorer.encode(inputs, targets)


def write_scores(scores, output, refuses_long=False):
    """Writes a line for each score: the sum, the number of tokens, 1 if greedy, else 0.

    Under `--log=json` a line is a JSON object. The scores are what `TextScorer.score`
    yields. Standard error reports how many pairs
    were cut; under `refuses_long` the first one is a ValueError.
    """
    total, over = 0, 0
    for value, num_tokens, greedy, cut in scores:
        if refuses_long and cut:
            raise _too_long(total + 1, "the model reads")
        names = {"log_likelihood": value, "tokens": num_tokens, "greedy": greedy}
        output.write(_row("%.4f\t%d\t%d", names))
        total += 1
        over += cut
    if over:
        _warn(over, total, "the model reads: they were cut")


def _too_long(number, what):
    return UserError(f"line {number} is longer than {what} (--on_long=raise).")


def _warn(over, total, what):
    message = f"{over:,} of {total:,} lines are longer than {what}."
    console.say(message, "warning", sys.stderr)


def write_perplexity(scores, num_bytes, output):
    """Writes a line: log-likelihood, tokens, perplexity and bits per byte of a text."""
    sums, counts, *_ = zip(*scores, strict=True)
    loss, tokens = -math.fsum(sums), sum(counts)
    mean = loss / max(tokens, 1)
    perplexity = math.exp(mean) if mean < 700 else math.inf
    bits = loss / math.log(2) / max(num_bytes, 1)
    names = {"log_likelihood": -loss, "tokens": tokens}
    names |= {"perplexity": perplexity, "bits_per_byte": bits}
    output.write(_row("%.4f\t%d\t%.4f\t%.4f", names))


def _row(format, values):
    """Returns {name: number} as a line of bytes, with tabs between or as JSON."""
    text = format % tuple(values.values())
    line = console.as_json(text, "result", values) if console.is_json() else text
    return line.encode() + b"\n"


def open_input(path):
    """Opens a file of bytes, "-" for standard input. An OSError names the file."""
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return open(path, "rb")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}.") from None


@contextlib.contextmanager
def open_output(path):
    """Opens a file to write bytes to; "-" is standard output.

    The file appears when the block ends without an error. Otherwise a file that was
    there stays as it is. An OSError names the file.
    """
    if path == "-":
        try:
            yield sys.stdout.buffer
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            console.leave_out(sys.stdout)
        return
    with contextlib.ExitStack() as stack:
        try:
            file = _NamedFile(stack.enter_context(whole_file(path)), path)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}.") from None
        yield stack.enter_context(io.BufferedWriter(file))


@contextlib.contextmanager
def open_text_output(path):
    """Opens a file as `open_output` does, for text that is written at the end."""
    with open_output(path) as output:
        text = io.StringIO()
        yield text
        output.write(text.getvalue().encode())


class _NamedFile(io.FileIO):
    """A file to write to; its errors call it `name`."""

    def __init__(self, path, name):
        super().__init__(path, "w")
        self._name = name

    def write(self, content):
        try:
            return super().write(content)
        except OSError as error:
            message = f"cannot write {self._name}: {error.strerror}."
            raise StorageError(message) from None


def prompt(terminal):
    """Yields the lines that are typed, until Control-D."""
    line = True
    while line:
        # Not input(): it could write into the output, and fails on invalid UTF-8.
        print("> ", end="", file=sys.stderr, flush=True)
        if line := terminal.readline():
            yield line
    print(file=sys.stderr)
