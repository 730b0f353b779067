"""`TextScorer` and `python -m remixer_tf score`."""

import io
import math

import numpy as np
import pytest
import seqio

from remixer_tf.commands import run_command
from remixer_tf.configuration import UserError
from remixer_tf.data.codec import ragged
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.decoding import score as score_batch
from remixer_tf.serving import lines
from remixer_tf.serving.text_scorer import TextScorer
from tests.data.toy_tasks import VOCABULARY, toy_task
from tests.layers.harness import randomize
from tests.models.tiny import tiny_decoder, tiny_model

LENGTHS = {"inputs": 8, "targets": 12}
TEXT = b"counting sheep, one two three four five six sev"


@pytest.fixture
def model(request):
    size = VOCABULARY.vocab_size
    if getattr(request, "param", "lm") == "lm":
        model = tiny_decoder("gmlp", vocab_size=size)
    else:
        model = tiny_model("remixer", vocab_size=size)
    randomize(model)
    return model


def text_task():
    """Running text, as `text_lm`."""
    task = toy_task({"dev": [("", "abcdef")]}, metric_fns=[])
    features = {"targets": task.output_features["targets"]}
    return task.replace(output_features=features)


def ids(text):
    return [byte + 3 for byte in text]


def test_running_text_has_no_eos_and_keeps_the_end_of_inputs(model):
    scorer = TextScorer(model, text_task(), {"targets": 6})
    pairs = [scorer.encode(*pair) for pair in ((b"abc", b"de"), (b"abcdefg", b"hi"))]
    assert pairs[0] == (ids(b"abc"), ids(b"de"))
    short, long = scorer.score(pairs, batch_size=2)
    assert (short[1], short[3]) == (2, False) and (long[1], long[3]) == (2, True)
    rows = np.array([[*ids(b"abcde"), 0], ids(b"defghi")], "int32")
    weights = np.array([[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]], "int32")
    batch = {
        "decoder_input_tokens": np.pad(rows, [(0, 0), (1, 0)])[:, :-1],
        "decoder_target_tokens": rows,
        "decoder_loss_weights": weights,
    }
    expected = np.array(score_batch(model, batch).sums)
    np.testing.assert_allclose([short[0], long[0]], expected, atol=1e-3)


@pytest.mark.parametrize(
    "model", [pytest.param("remixer", marks=pytest.mark.slow)], indirect=True
)
@pytest.mark.parametrize("last", ["append_eos", "append_eos_after_trim"])
def test_an_encoder_decoder_reads_what_evaluation_reads(model, last):
    rows = [("ab", "xy"), ("abcdefghi", "x"), ("", "y" * 14)]
    task = toy_task({"dev": rows}, last=getattr(seqio.preprocessors, last))
    scorer = TextScorer(model, task, LENGTHS)
    pairs = [scorer.encode(*(text.encode() for text in row)) for row in rows]
    batch, _, _ = scorer._pairs(*map(ragged, zip(*pairs, strict=True)))
    examples = read_examples(task, "dev", LENGTHS)
    for row, example in zip(batch["encoder_input_tokens"], examples, strict=True):
        assert [i for i in row.numpy().tolist() if i] == example["inputs"].tolist()
    whole = [*scorer.score(pairs, batch_size=2)]
    assert [(row[1], row[3]) for row in whole] == [(3, False), (2, True), (12, True)]
    alone = [next(iter(scorer.score([pair], batch_size=2))) for pair in pairs]
    for one, other in zip(alone, whole, strict=True):
        assert one[0] == pytest.approx(other[0], abs=1e-3) and one[1:] == other[1:]


@pytest.mark.parametrize("stride", [1, 5, 16])
def test_windows_score_each_token_once_after_a_full_context(model, stride):
    scorer = TextScorer(model, text_task(), {"targets": 16})
    windows = scorer.windows(TEXT, stride)
    assert sum((targets for _, targets in windows), []) == ids(TEXT)
    assert windows[0] == ([], ids(TEXT)[:16])
    end = 16
    for inputs, targets in windows[1:]:
        assert len(targets) == min(stride, len(TEXT) - end)
        end += len(targets)
        assert inputs + targets == ids(TEXT)[end - 16 : end]
    if stride == 16:
        assert not any(inputs for inputs, _ in windows[:-1])
        output = io.BytesIO()
        scores = [*scorer.score(windows, batch_size=2)]
        lines.write_perplexity(scores, len(TEXT), output)
        total, tokens, perplexity, bits = map(float, output.getvalue().split(b"\t"))
        assert total == pytest.approx(sum(row[0] for row in scores), abs=1e-3)
        assert tokens == len(TEXT)
        assert perplexity == pytest.approx(math.exp(-total / tokens), rel=1e-3)
        assert bits == pytest.approx(math.log2(perplexity), rel=1e-3)  # byte = token


def test_windows_of_a_short_text_and_wrong_strides(model):
    scorer = TextScorer(model, text_task(), {"targets": 16})
    assert scorer.windows(b"ab", 4) == [([], ids(b"ab"))]
    assert scorer.windows(b"", 4) == [([], [])]
    for stride in (0, 17):
        with pytest.raises(ValueError, match="from 1 to 16.*Received"):
            scorer.windows(TEXT, stride)


def test_a_line_without_a_tab(model):
    scorer = TextScorer(model, text_task(), {"targets": 16})
    with pytest.raises(ValueError, match="line 2 has no tab.*b'cd'"):
        [*lines.read_pairs(scorer, [b"a\tb\n", b"cd\n"])]
    (pair,) = lines.read_pairs(scorer, [b"\tb\tc\r\n"])
    assert pair == ([], ids(b"b\tc"))


@pytest.mark.slow
@pytest.mark.usefixtures("clear_gin")
def test_the_command(tiny_run, tmp_path, capsys):
    questions, scores = tmp_path / "questions", tmp_path / "scores"
    pairs = [b"A cat .\tcat", b"\t\xff", b"caf\xc3\xa9\t", b"dog cat " * 9 + b"\ta"]
    questions.write_bytes(b"\n".join(pairs))
    options = [f"--model_dir={tiny_run}", f"--output={scores}"]
    run_command("score", [*options, f"--input={questions}", "--batch_size=3"])
    found = [line.split("\t") for line in scores.read_text().splitlines()]
    assert len(found) == 4 and all(float(row[0]) < 0 for row in found)
    assert [row[1] for row in found][2] == "1"  # EOS
    assert {row[2] for row in found} <= {"0", "1"}
    assert "warning: 1 of 4 lines are longer" in capsys.readouterr().err
    small = "--gin.Run.feature_lengths={'inputs': 4, 'targets': 4}"
    run_command("score", [*options, "--split=dev", small])
    assert len(scores.read_text().splitlines()) == 500
    with pytest.raises(UserError, match="--split scores a task"):
        run_command("score", [*options, f"--input={questions}", "--split=dev"])
    with pytest.raises(UserError, match="--stride: must be at least 1. Received: 0"):
        run_command("score", [*options, f"--input={questions}", "--stride=0"])
    with pytest.raises(UserError, match="nothing is cut. Leave out --on_long"):
        run_command("score", [*options, "--stride=4", "--on_long=raise"])
    with pytest.raises(ValueError, match="A stride is for language models"):
        run_command("score", [*options, f"--input={questions}", "--stride=4"])
