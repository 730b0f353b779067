"""Beams, samples and given answers in `infer`, `eval` and a SavedModel, by gin."""

import json
import shutil
import warnings

import numpy as np
import pytest
import tensorflow as tf

import remixer_tf as rt
from remixer_tf.commands import run_command

pytestmark = pytest.mark.usefixtures("clear_gin")


def arguments(run, preset, *more):
    files = f"{run}/operative_config.gin", f"decoding/{preset}.gin"
    return [f"--model_dir={run}", *(f"--gin_file={file}" for file in files), *more]


def ask(run, preset, questions, number, folder, *more):
    """What `infer` answers: for each question, `number` pairs of text and score."""
    files = folder / "questions.txt", folder / "answers.txt"
    files[0].write_bytes(b"\n".join(questions))
    options = f"--input={files[0]}", f"--output={files[1]}", "--scores"
    run_command("infer", arguments(run, preset, *options, *more))
    rows = (row.rsplit(b"\t", 1) for row in files[1].read_bytes().split(b"\n")[:-1])
    rows = [(text, float(score)) for text, score in rows]
    assert len(rows) == number * len(questions)
    return [rows[i : i + number] for i in range(0, len(rows), number)]


@pytest.mark.slow
def test_the_n_best_of_given_strings(tiny_run, tmp_path):
    strings = ["cat", "a cake", "dog", "the dog slept"]
    options = (
        "--gin.beam_search.n_best=4",
        "--gin.HuggingFaceRules.length_penalty=0.0",
        "--gin.AnswerLimits.allowed=@allowed_answers()",
        f"--gin.allowed_answers.strings={strings}",
    )
    questions = [b"A cat .", b"", b"Emma slept"]
    for answers in ask(tiny_run, "huggingface", questions, 4, tmp_path, *options):
        texts, scores = zip(*answers, strict=True)
        assert sorted(texts) == sorted(text.encode() for text in strings)
        assert list(scores) == sorted(scores, reverse=True) and scores[0] < 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset, several, tiny_run",
    [
        pytest.param("t5", "beam_search.n_best", "bytes", marks=pytest.mark.slower),
        pytest.param(
            "huggingface", "beam_search.n_best", "words", marks=pytest.mark.slower
        ),
        ("sampling", "sample.num_samples", "bytes"),
    ],
    indirect=["tiny_run"],
)
def test_infer_eval_and_a_saved_model_agree(preset, several, tiny_run, tmp_path):
    options = f"--gin.{several}=3", "--gin.Run.dtype_policy='float32'"
    for folder in ("eval", "export"):
        shutil.rmtree(tiny_run / folder, ignore_errors=True)
    evaluation = (
        "--gin.DecodedEvaluation.splits=['test']",
        "--gin.DecodedEvaluation.max_examples=6",
        "--gin.Run.dtype_policy='float32'",
    )
    run_command("eval", arguments(tiny_run, preset, *options, *evaluation))
    (file,) = tiny_run.glob("eval/mini_cogs/test/1/predictions.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    questions = [record["input"].encode() for record in records]
    answers = ask(tiny_run, preset, questions, 3, tmp_path, *options)

    def escape(text):
        return text.replace(b"\n", rb"\n").replace(b"\r", rb"\r")

    first = [texts[0][0] for texts in answers]
    assert first == [escape(record["prediction"].encode()) for record in records]
    run_command("export", arguments(tiny_run, preset, *options))
    model = tf.saved_model.load(str(tiny_run / "export" / "1"))
    shutil.rmtree(tiny_run / "export")  # which other tests make their own way
    found = model.signatures["serving_default"](inputs=tf.constant(questions))
    assert found["all_outputs"].shape == (6, 3)
    for row, texts, scores in zip(
        answers, found["all_outputs"].numpy(), found["all_scores"].numpy(), strict=True
    ):
        assert [text for text, _ in row] == [escape(text) for text in texts]
        np.testing.assert_allclose([score for _, score in row], scores, atol=1e-3)
    np.testing.assert_array_equal(found["outputs"], found["all_outputs"][:, 0])
    if preset == "sampling":
        check_settings(tiny_run, model, questions)


def check_settings(folder, model, questions):
    """The signature `generate` draws what `generate` of the loaded run draws."""
    search = {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "seed": 2**40 + 3}
    given = {name: tf.constant(value) for name, value in search.items()}
    given |= {"seed": tf.constant(search["seed"], tf.int64)}
    found = model.signatures["generate"](
        inputs=tf.constant(questions), max_length=tf.constant(7), **given
    )["all_outputs"].numpy()
    run = rt.load(folder, bindings=["Run.dtype_policy = 'float32'"])
    texts = [question.decode() for question in questions]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some are trimmed.
        expected = run.generate(texts, max_length=7, num_samples=3, **search)
    found = [[text.decode("utf-8", "replace") for text in row] for row in found]
    assert found == expected
