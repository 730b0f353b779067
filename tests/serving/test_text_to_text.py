"""`TextToText` and `python -m remixer_tf infer`."""

import io
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import seqio
import tensorflow as tf
from keras import ops

from remixer_tf import configuration
from remixer_tf.checkpoints.whole_folder import machine
from remixer_tf.commands import run_command
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.decoding import (
    Answers,
    Choice,
    Decoded,
    Search,
    decode,
    greedy_decode,
)
from remixer_tf.models import DecoderOnly
from remixer_tf.serving import lines as lines_module
from remixer_tf.serving import text_to_text
from remixer_tf.serving.lines import answer_lines, open_input, open_output
from tests.data.toy_tasks import toy_task
from tests.layers.harness import randomize
from tests.models.tiny import VOCAB_SIZE, tiny_mixture, tiny_model
from tests.settings import part_of

QUESTIONS = [
    b"A cat .",
    b"",
    b"dog cat " * 9,
    b"caf\xc3\xa9",
    b"\xff\xfe \x80 cat",
    b"a\0b",
]


pytestmark = pytest.mark.usefixtures("clear_gin")


def echo(model, batch, max_length):
    """Answers with the question; the score is the number of EOS in it."""
    tokens = batch["encoder_input_tokens"]
    ends = ops.sum(ops.cast(ops.equal(tokens, 1), "float32"), axis=1)
    return Decoded(tokens, ends)


def echo_model(task=None, length=8, decode_fn=echo):
    return text_to_text.TextToText(
        keras.Sequential(),
        task or toy_task({}),
        feature_lengths={"inputs": length, "targets": length},
        decode_fn=decode_fn,
    )


def answers(model, lines, **kwargs):
    output = io.BytesIO()
    answer_lines(model, lines, output, **{"batch_size": 2, **kwargs})
    return output.getvalue()


@pytest.mark.parametrize("last", ["append_eos", "append_eos_after_trim"])
def test_reads_what_evaluation_reads(last):
    texts = ["", "ab", "abcdefg", "abcdefgh", "abcdefghi", "ß" * 5]
    splits = {"dev": [(text, "a") for text in texts]}
    task = toy_task(splits, last=getattr(seqio.preprocessors, last))
    examples = read_examples(task, "dev", {"inputs": 8, "targets": 8})
    model = echo_model(task)
    ids, trimmed = model.read(tf.constant(texts))
    for example, row in zip(examples, ids.numpy(), strict=True):
        assert row.tolist() == np.pad(example["inputs"], (0, 8))[:8].tolist()
    assert trimmed.numpy().tolist() == [len(text.encode()) + 1 > 8 for text in texts]


def test_a_task_without_targets_is_an_error():
    task = toy_task({})
    inputs = {"inputs": task.output_features["inputs"]}
    with pytest.raises(ValueError, match="toy has the features inputs. Answering"):
        echo_model(task.replace(output_features=inputs))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_lines_stay_lines(batch_size):
    lines = io.BytesIO(b"b\n\na\r\n\xff\xc3\xa9\nc\rd\nlast")
    expected = b"b\n\na\n\xc3\xa9\nc\\rd\nlast\n"
    assert answers(echo_model(), lines, batch_size=batch_size) == expected


@pytest.mark.parametrize(
    ("is_file", "expected"),
    [(True, [[1, 2], [6, 7], [3]]), (False, [[1, 7], [2, 6], [3]])],
)
def test_lines_of_a_file_are_answered_with_others_as_long(
    tmp_path, monkeypatch, is_file, expected
):
    """In their order; lines of a pipe with those that came with them."""
    lines, found = b"1234567 1 123456 12 123".split(), []
    call = text_to_text.TextToText.__call__

    def noting(self, texts, settings=None):
        found.append([len(text) for text in texts.numpy()])
        return call(self, texts, settings)

    monkeypatch.setattr(lines_module, "AHEAD", 2)
    monkeypatch.setattr(text_to_text.TextToText, "__call__", noting)
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\n".join(lines))
    with open_input(str(path)) as file:
        output = answers(echo_model(), file if is_file else list(file))
    assert output == b"\n".join(lines) + b"\n"
    assert found == expected


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        pytest.param("t5_1_1", "float32", [16, 32], marks=pytest.mark.slower),
        ("t5_1_1", "mixed_bfloat16", [32]),
        pytest.param("remixer", "float32", [16, 32], marks=pytest.mark.slow),
    ],
)
def test_questions_are_padded_as_little_as_changes_nothing(kind, dtype, expected):
    """The answers are those to ids that are padded to the model's length."""
    model = tiny_model(kind, dtype=dtype, vocab_size=259, num_layers=1, max_length=32)
    randomize(model)
    widths = []

    def search(model, batch, max_length):
        widths.append(batch["encoder_input_tokens"].shape[1])
        return greedy_decode(model, batch, max_length, eos_id=-1)

    answer = text_to_text.TextToText(
        model,
        toy_task({}),
        feature_lengths={"inputs": 32, "targets": 6},
        decode_fn=search,
    )
    whole_length = tf.function(
        lambda ids: greedy_decode(model, {"encoder_input_tokens": ids}, 6, eos_id=-1)
    )
    for texts in (["ab", "c"], ["abcdefghijkl" * 2, "a"], ["d", ""]):
        found = answer(tf.constant(texts))
        ids, _ = answer.read(tf.constant(texts))
        assert ids.shape[1] == 32
        whole = whole_length(ids)
        tolerance = 1e-4 if dtype == "float32" else 0.1
        np.testing.assert_allclose(found["scores"], whole.scores, atol=tolerance)
        if dtype == "float32":
            outputs = answer.write(whole.tokens).numpy().tolist()
            assert found["outputs"].numpy().tolist() == outputs
    assert widths == expected


def test_a_line_break_in_an_answer_is_escaped():
    assert answers(echo_model(), [b"a\nb\n", b"c"]) == b"a\\nb\nc\n"


def test_scores_and_over_long_lines(capsys):
    lines = [b"a", b"12345678", b"123456789", b"b"]
    expected = b"a\t1.0000\n12345678\t0.0000\n12345678\t0.0000\nb\t1.0000\n"
    assert answers(echo_model(), lines, scores=True) == expected
    assert "2 of 4 lines are longer than 8 tokens" in capsys.readouterr().err
    assert answers(echo_model(), [b"a"]) == b"a\n" and not capsys.readouterr().err


def test_several_answers_have_a_line_each():
    """The second is the question without its first letter; of "a" there is none."""

    def echo_twice(model, batch, max_length):
        first = echo(model, batch, max_length)
        second = ops.pad(first.tokens[:, 1:], [(0, 0), (0, 1)])
        there = second[:, :1] > 1
        tokens = ops.stack([first.tokens, ops.where(there, second, 0)], axis=1)
        scores = ops.where(there[:, 0], first.scores, -float("inf"))
        return first._replace(
            answers=Answers(tokens, ops.stack([first.scores, scores], 1))
        )

    model = echo_model(decode_fn=echo_twice)
    assert answers(model, [b"abc", b"a", b"b\nc"]) == b"abc\nbc\na\n\nb\\nc\n\\nc\n"
    expected = b"a\t1.0000\n\t-inf\nab\t1.0000\nb\t1.0000\n"
    assert answers(model, [b"a", b"ab"], scores=True) == expected


def test_no_lines():
    assert answers(echo_model(), []) == b""


def test_output_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "answers.txt"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), open_output(str(path)) as output:
        output.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["answers.txt"]
    with open_output(str(path)) as output:
        output.write(b"whole")
        output.flush()
        assert path.read_text() == "before"
    assert path.read_text() == "whole" and os.listdir(tmp_path) == ["answers.txt"]
    killed = subprocess.Popen(["true"])
    killed.wait()
    other = tmp_path / "other"
    other.mkdir()
    (other / f"answers.txt.writing-{machine()}-{killed.pid}").touch()
    with open_output(f"{other}/answers.txt"):
        pass
    assert os.listdir(other) == ["answers.txt"]
    with open_output(os.devnull) as output:
        output.write(b"gone")
    assert not os.path.isfile(os.devnull)


def test_a_full_disk_names_the_file():
    for content in (b"x", b"x" * 100_000):  # It is written at the end, or before.
        with pytest.raises(OSError, match="cannot write /dev/full: No space") as error:
            with open_output("/dev/full") as output:
                output.write(content)
        assert isinstance(error.value, configuration.UserError)


def test_errors(tmp_path):
    with pytest.raises(OSError, match="cannot read .*none.txt: No such"):
        open_input(str(tmp_path / "none.txt"))
    for path, reason in [(tmp_path / "no" / "out", "No such"), (tmp_path, "directory")]:
        with pytest.raises(OSError, match=f"cannot write .*{reason}"):
            with open_output(str(path)):
                pass
    with pytest.raises(configuration.UserError, match="no .*operative_config.gin"):
        run_command("infer", [f"--model_dir={tmp_path}"])


@pytest.mark.slow
def test_the_command(tiny_run, tmp_path, capsysbinary, monkeypatch):
    questions, output = tmp_path / "questions.txt", tmp_path / "answers.txt"
    questions.write_bytes(b"\n".join(QUESTIONS))
    run = [f"--model_dir={tiny_run}"]
    files = [f"--input={questions}", f"--output={output}"]
    run_command("infer", [*run, *files, "--batch_size=4"])
    lines = output.read_bytes().splitlines()
    assert len(lines) == len(QUESTIONS) and len(set(lines)) > 1
    assert b"1 of 6 lines" in capsysbinary.readouterr().err

    stdin = io.TextIOWrapper(io.BytesIO(questions.read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    run_command("infer", [*run, "--step=1", "--scores"])
    rows = [line.split(b"\t") for line in capsysbinary.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == lines
    assert all(float(score) < 0 for _, score in rows)

    for arguments, kind, message in [
        (["--step=7"], FileNotFoundError, "no checkpoint of step 7"),
        (["--batch_size=0"], configuration.UserError, "at least 1. Received: 0"),
    ]:
        with pytest.raises(kind, match=message) as error:
            run_command("infer", [*run, *arguments])
        assert isinstance(error.value, configuration.UserError)


@pytest.mark.slow
def test_a_terminal_is_asked_line_by_line(bytes_run, capsysbinary, monkeypatch):
    class Terminal(io.BytesIO):
        def isatty(self):
            return True

        def readline(self):
            seen.append(capsysbinary.readouterr())
            return super().readline()

    seen = []
    stdin = io.TextIOWrapper(Terminal(b"A cat .\n\xff\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    run_command("infer", [f"--model_dir={bytes_run}", "--batch_size=64"])
    assert [text.err for text in seen] == [b"> "] * 3
    assert [text.out.count(b"\n") for text in seen] == [0, 1, 1]


def decode_while_clear(model, batch, max_length):
    """Greedy, up to where two tokens are about as likely, which rounding decides."""

    def choose(logits, hypotheses, place, state):
        values, tokens = ops.top_k(logits, 2)
        clear = values[..., 0] - values[..., 1] > 0.1
        tokens = ops.where(clear, ops.cast(tokens[..., 0], "int32"), 1)
        return Choice(tokens, ended=ops.equal(tokens, 1))

    (tokens, scores, _), _ = decode(model, batch, max_length, Search(choose))
    return Decoded(tokens[:, 0], scores[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("tiny_run", ["bytes", "words"], indirect=True)
def test_answers_are_evaluations(tiny_run, tmp_path):
    """Trimmed inputs, unknown words and invalid UTF-8 in the output are among them.

    In bfloat16 a batch of another size may round otherwise: there, answers are the
    same as far as the likeliest token is clear.
    """
    run_command(
        "eval",
        [
            f"--model_dir={tiny_run}",
            "--gin.DecodedEvaluation.splits=['test']",
            "--gin.DecodedEvaluation.max_examples=30",
            "--gin.DecodedEvaluation.batch_size=8",
        ],
    )
    (file,) = tiny_run.glob("eval/mini_cogs/test/1/predictions.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    settings = configuration.read([str(tiny_run / "operative_config.gin")], [])
    run = part_of(settings, "Run")()
    model, step = part_of(settings, "text_to_text")(run, str(tiny_run))
    assert step == 1
    inputs = tf.constant([record["input"] for record in records])
    answers = model(inputs)
    assert answers["trimmed"].numpy().any()
    outputs = [text.decode() for text in answers["outputs"].numpy()]
    assert len(set(outputs)) > 1
    predictions = [record["prediction"] for record in records]
    if tiny_run.name.startswith("bytes"):
        assert outputs == predictions
        return
    model, _ = part_of(settings, "text_to_text")(
        run, str(tiny_run), decode_fn=decode_while_clear
    )
    clear = [text.decode() for text in model(inputs)["outputs"].numpy()]
    assert sum(map(len, clear)) > sum(map(len, outputs)) / 10
    for start, output, prediction in zip(clear, outputs, predictions, strict=True):
        assert output.startswith(start) and prediction.startswith(start)


def test_a_model_that_cannot_decode_says_so_in_one_line():
    """Errors of our own reach the commands as such, though raised while tracing."""
    stack = tiny_mixture("smlp", routing="partial")
    model = DecoderOnly(stack, VOCAB_SIZE, 8)
    model.build()
    answer = text_to_text.TextToText(
        model, toy_task({"train": []}), feature_lengths={"inputs": 4, "targets": 4}
    )
    with pytest.raises(ValueError, match="cannot decode step by step") as error:
        answer(tf.constant(["a"]))
    assert isinstance(error.value, configuration.UserError)
