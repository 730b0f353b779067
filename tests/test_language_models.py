"""Masked and causal language models and a classifier, from gin to predictions."""

import json
import shutil

import gin
import numpy as np
import pytest
import seqio
import tensorflow as tf

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.checkpoints import reading
from remixer_tf.commands import run_command
from remixer_tf.evaluation.results import read_results
from remixer_tf.models.build import build_model
from remixer_tf.tasks import classes, squad, text_files
from tests.continuing import assert_continues_exactly
from tests.settings import part_of, value_of

TINY = [
    "--gin.D_MODEL=16",
    "--gin.D_FF=32",
    "--gin.NUM_LAYERS=2",
    "--gin.BATCH_SIZE=16",
    "--gin.LEARNING_RATE=1e-2",
    "--gin.WARMUP_STEPS=4",
    "--gin.VOCABULARY=@byte_vocabulary()",
    "--gin.VOCABULARY_FILE=None",
    "--gin.VOCAB_SIZE=262",
    "--gin.LossEvaluation.period=20",
    "--gin.Schedule.checkpoint_period=20",
    "--gin.Schedule.log_period=20",
    "--gin.LongExamples.count_limit=0",
]
BERT = ["--gin.D_KV=8", "--gin.NUM_HEADS=2"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The arguments that name a folder of text: counted sheep."""
    folder = tmp_path_factory.mktemp("texts")
    names = "one two three four five six seven eight nine ten".split()
    lines = [
        {"text": f"{names[i % 10]} sheep and {names[(i + 1) % 10]} sheep. " * 3}
        for i in range(100)
    ]
    with open(folder / "sheep.jsonl", "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    yield [f"--gin.text_files.directory='{folder}'"]
    text_files.data_folder.set(None)


pytestmark = pytest.mark.usefixtures("clear_gin")


def run(model_dir, *arguments, steps):
    sizes = [*TINY, f"--gin.TRAIN_STEPS={steps}", "--gin.MAX_LENGTH=32"]
    run_command("train", [f"--model_dir={model_dir}", *arguments, *sizes])


def results(model_dir, kind="loss"):
    found = read_results(str(model_dir), kind)
    return sorted(found, key=lambda result: (result["task"], result["step"]))


def weights(model_dir):
    """The variables of the newest checkpoint, {path: array}."""
    settings = configuration.read([str(model_dir / "operative_config.gin")], [])
    model = build_model(value_of(settings, "Run.model"), "float32")
    reading.restore_model(str(model_dir), model, None)
    return {v.path: np.array(v) for v in model.trainable_variables}


def mlm(texts):
    return [
        "--gin_file=models/amlp_tiny_mlm.gin",
        "--gin_file=runs/mlm.gin",
        "--gin.D_ATTENTION=8",
        "--gin.FEATURE_LENGTHS={'inputs': 32, 'targets': 32}",
        *texts,
    ]


@pytest.fixture(scope="module")
def mlm_run(texts, tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("mlm")
    run(model_dir, *mlm(texts), steps=40)
    gin.clear_config()
    return model_dir


@pytest.mark.slower
def test_masked_language_model(mlm_run):
    first, last = (result["metrics"] for result in results(mlm_run))
    assert last["loss"] < first["loss"] < np.log(262)
    np.testing.assert_allclose(last["perplexity"], np.exp(last["loss"]), rtol=1e-5)
    assert 0 < last["token_accuracy"] < 1
    # The two documents of validation are 155 bytes, 5 rows of floor(0.15 * 31).
    assert results(mlm_run)[0]["target_tokens"] == 20


@pytest.mark.slower
def test_masked_language_model_continues_exactly(mlm_run, texts, tmp_path):
    assert_continues_exactly(
        mlm_run, tmp_path, lambda: run(tmp_path, *mlm(texts), steps=40)
    )


@pytest.mark.slower
def test_pictures_of_attention_in_a_pair_of_texts(mlm_run, tmp_path):
    run_dir = shutil.copytree(mlm_run, tmp_path / "run")
    pair = ["--text=two", "--text=ten"]
    run_command("pictures", [f"--model_dir={run_dir}", *pair])
    drawn = {path.name for path in (run_dir / "pictures" / "40").iterdir()}
    assert drawn == {
        *("index.html", "encoder_matrices.png", "encoder_text_attention.png")
    }
    settings = configuration.read([str(run_dir / "operative_config.gin")], [])
    model = build_model(value_of(settings, "Run.model"), "float32")
    pictures = part_of(settings, "Pictures")
    drawer = pictures(period=1, text=["two", "ten"])
    axis = drawer.draw(model, 1)["encoder_text_attention"].axes[0]
    names = ["[CLS]", *"two", "[SEP]", *"ten", "[SEP]"]
    for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
        assert [label.get_text() for label in labels] == names
    for texts, words in ((["a"] * 3, "two at most"), (["a" * 31], "31 tokens.*to 30")):
        with pytest.raises(ValueError, match=words):
            pictures(period=1, text=texts).draw(model, 1)


@pytest.fixture
def same_or_not():
    """A task of pairs: whether the second text begins with the first's letter."""
    letters = "abcd"
    rows = [
        (f"{a} here", f"{b} there", "same" if a == b else "other")
        for a in letters
        for b in letters
    ]
    name = "same_or_not"
    classes.add_task(name, lambda split: rows, ["train", "dev"], ["other", "same"])
    yield name
    seqio.TaskRegistry.remove(name)


@pytest.mark.slower
def test_a_classifier_takes_the_body_and_a_fresh_head(
    mlm_run, same_or_not, tmp_path, capsys
):
    arguments = [
        "--gin_file=models/amlp_tiny_mlm.gin",
        "--gin_file=runs/finetune_classifier.gin",
        "--gin.D_ATTENTION=8",
        f"--gin.TASK='{same_or_not}'",
        "--gin.NUM_CLASSES=2",
        f"--gin.INITIAL_CHECKPOINT='{mlm_run}'",
        "--gin.FEATURE_LENGTHS={'inputs': 24, 'token_types': 24, 'targets': 1}",
        "--gin.DecodedEvaluation.period=20",
    ]
    run(tmp_path, *arguments, steps=20)
    shown = capsys.readouterr()
    shown = shown.out + shown.err
    body = weights(mlm_run)
    fresh = [p for p in weights(tmp_path) if "/head/" in p]
    assert len(fresh) == 4 and not any("/head/" in path for path in body)
    assert f"{len(body)} variables taken" in shown and "4 fresh" in shown
    (loss,) = results(tmp_path)
    (scored,) = results(tmp_path, "metrics")
    assert loss["target_tokens"] == 16  # one label an example
    right = 100 * loss["metrics"]["token_accuracy"]
    np.testing.assert_allclose(scored["metrics"]["accuracy"], right, atol=1e-4)
    (path,) = (tmp_path / "eval").rglob("predictions*.jsonl")
    said = [json.loads(line)["prediction"] for line in path.read_text().splitlines()]
    assert len(said) == 16 and set(said) <= {"same", "other"}
    gin.clear_config()
    run_command("eval", [f"--model_dir={tmp_path}"])
    with pytest.raises(ValueError, match="Received: EncoderOnly"):
        run_command("infer", [f"--model_dir={tmp_path}", f"--input={path}"])
    with pytest.raises(ValueError, match="class 1, but the model's num_classes is 1"):
        run(tmp_path / "one", *arguments, "--gin.NUM_CLASSES=1", steps=20)


@pytest.fixture
def where_is_the_digit():
    """A task of spans: the digit of a context, in one window or two."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(48):
        letters = "".join(rng.choice(list("abcde "), size=20 + i % 20))
        place = int(rng.integers(1, len(letters)))
        digit = str(i % 10)
        context = f"{letters[:place]}{digit}{letters[place:]}"
        answer = {"text": digit, "answer_start": place}
        rows.append(
            {"id": str(i), "question": "?", "context": context, "answers": [answer]}
        )
    name = "where_is_the_digit"
    source = squad.question_source(lambda split: rows, ["train", "dev"])
    squad.add_task(name, source, max_question_length=4, stride=16)
    yield name
    seqio.TaskRegistry.remove(name)


@pytest.mark.slower
def test_spans_are_learned(mlm_run, where_is_the_digit, tmp_path):
    arguments = [
        "--gin_file=models/amlp_tiny_mlm.gin",
        "--gin_file=runs/finetune_squad.gin",
        "--gin.D_ATTENTION=8",
        f"--gin.TASK='{where_is_the_digit}'",
        f"--gin.INITIAL_CHECKPOINT='{mlm_run}'",
        "--gin.FEATURE_LENGTHS={'inputs': 32, 'token_types': 32, 'answerable': 32, "
        "'targets': 2}",
        "--gin.DecodedEvaluation.period=20",
    ]
    run(tmp_path, *arguments, steps=20)
    (loss,) = results(tmp_path)
    (scored,) = results(tmp_path, "metrics")
    windows = scored["examples"]
    assert windows > 48 and loss["target_tokens"] == 2 * windows
    assert scored["metrics"]["em"] > 80  # by chance 3
    (path,) = (tmp_path / "eval").rglob("predictions*.jsonl")
    said = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(said) == windows
    assert {"", *"0123456789"} >= {record["target"] for record in said}
    assert any(record["prediction"] == record["target"] != "" for record in said)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    ["gmlp_lm_tiny", pytest.param("transformer_lm_tiny", marks=pytest.mark.slower)],
)
def test_language_model(model, texts, tmp_path):
    arguments = [
        f"--gin_file=models/{model}.gin",
        "--gin_file=runs/lm.gin",
        "--gin.FEATURE_LENGTHS={'targets': 32}",
        *texts,
        *(BERT if "transformer" in model else []),
    ]
    run(tmp_path, *arguments, steps=40)
    first, last = (result["metrics"] for result in results(tmp_path))
    assert last["loss"] < first["loss"] < np.log(262)
    # It continues a text: half of the 32 tokens are for the prompt.
    gin.clear_config()
    prompt, answer = tmp_path / "prompt", tmp_path / "answer"
    prompt.write_text("one sheep\n")
    arguments = [f"--model_dir={tmp_path}", f"--input={prompt}", f"--output={answer}"]
    run_command("infer", arguments)
    assert 0 < len(answer.read_bytes()) <= 1 + 3 * 16
    with pytest.raises(ValueError, match="must be less. Received: 32"):
        run_command("infer", [*arguments, "--gin.text_to_text.max_length=32"])
    loaded = rt.load(tmp_path)
    assert "".join(loaded.stream("one sheep")) == loaded.generate("one sheep")


@pytest.mark.slower
def test_a_language_model_answers_after_a_prompt(tmp_path):
    """mini_cogs as prefix and continuation; the same task as an encoder-decoder's."""
    arguments = [
        "--gin_file=models/gmlp_lm_tiny.gin",
        "--gin_file=runs/lm.gin",
        "--gin.TASK='mini_cogs'",
        "--gin.train.evaluations=[@DecodedEvaluation()]",
        "--gin.DecodedEvaluation.period=2",
        "--gin.DecodedEvaluation.max_examples=6",
        "--gin.DecodedEvaluation.splits=['dev']",
        "--gin.DecodedEvaluation.max_length=8",
        "--gin.FEATURE_LENGTHS={'inputs': 16, 'targets': 16}",
        "--gin.text_to_text.max_length=8",
        "--gin.WarmupLinearDecay.total_steps=10",
    ]
    run(tmp_path, *arguments, steps=2)
    (scored,) = results(tmp_path, "metrics")
    assert scored["examples"] == 6 and "exact_match" in scored["metrics"]
    gin.clear_config()
    questions, answers = tmp_path / "questions", tmp_path / "answers"
    questions.write_text("A cat slept .\nthe dog saw Emma .\n")
    run_command(
        "infer",
        [f"--model_dir={tmp_path}", f"--input={questions}"] + [f"--output={answers}"],
    )
    assert len(tf.io.gfile.GFile(str(answers), "rb").read().splitlines()) == 2


@pytest.fixture
def copa(tmp_path):
    """The argument that names a folder with two of COPA's questions."""
    row = {"premise": "Ann ran.", "choice1": "Hi.", "choice2": "She fell.", "label": 1}
    rows = [row | {"question": asked} for asked in ("cause", "effect")]
    (tmp_path / "val.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return f"--gin.copa.directory='{tmp_path}'"


@pytest.mark.slower
def test_a_language_model_of_raw_text_chooses_and_is_scored(texts, copa, tmp_path):
    model_dir = tmp_path / "run"
    arguments = [
        "--gin_file=models/gmlp_lm_tiny.gin",
        "--gin_file=runs/lm.gin",
        "--gin.FEATURE_LENGTHS={'targets': 32}",
        "--gin.train.evaluations=[@ScoredEvaluation()]",
        "--gin.ScoredEvaluation.period=1",
        "--gin.ScoredEvaluation.task='copa_choices_lm'",
        "--gin.ScoredEvaluation.feature_lengths={'inputs': 20, 'targets': 12}",
        "--gin.WarmupLinearDecay.total_steps=10",
        *texts,
        copa,
    ]
    run(model_dir, *arguments, steps=1)
    (scored,) = results(model_dir, "score")
    assert (scored["task"], scored["examples"]) == ("copa_choices_lm", 4)
    metrics = scored["metrics"]
    assert (metrics["questions"], metrics["chance"]) == (2, 1)
    assert metrics["accuracy"] == 50 * metrics["correct"]

    gin.clear_config()
    output = tmp_path / "output"
    options = [f"--model_dir={model_dir}", f"--output={output}"]
    run_command(
        "score",
        [
            *options,
            "--split=validation",
            "--gin.Run.task='copa_choices_lm'",
            "--gin.Run.feature_lengths={'inputs': 20, 'targets': 12}",
        ],
    )
    (path,) = (model_dir / "eval").rglob("scores.jsonl")
    sums = [json.loads(line)["score"] for line in path.read_text().splitlines()]
    found = [line.split("\t") for line in output.read_text().splitlines()]
    np.testing.assert_allclose([float(row[0]) for row in found], sums, atol=1e-2)

    gin.clear_config()
    book = tmp_path / "book"
    book.write_text("one sheep and two sheep. " * 8)
    run_command("score", [*options, f"--input={book}", "--stride=8"])
    loss, tokens, perplexity, bits = map(float, output.read_text().split())
    assert tokens == 200
    np.testing.assert_allclose(perplexity, np.exp(-loss / tokens), rtol=1e-3)
    np.testing.assert_allclose(bits, np.log2(perplexity), rtol=1e-3)
