"""lm-evaluation-harness on tasks of this folder's making, one of each of its kinds.

What it says of a run is compared with what `score` and `infer` say of the same texts.
"""

import json
import math

import gin
import numpy as np
import pytest
import seqio

pytest.importorskip("lm_eval")
import lm_eval

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.commands.lm_eval import harness_model
from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks import text_files
from tests.data.toy_tasks import toy_task
from tests.tiny_run import TINY, train_run, write_text

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clear_gin")]

ROWS = [
    {"question": "A cat", "choices": ["ran .", "slept ."], "label": 1},
    {"question": "the dog saw", "choices": ["Emma", "a cake", "it"], "label": 0},
    {"question": "one two", "choices": ["three", "four five"], "label": 0},
    {"question": "caf\u00e9 in", "choices": ["the house", "\u00e9"], "label": 1},
]
TEXTS = [
    "to be or not",
    "a text that is longer than what the models read  at once " * 2,
]
NEW_TOKENS = 8
COMMON = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/{task}.jsonl}}, cache_dir: {folder}}}
test_split: test
task: {task}
"""
YAML = {
    "choose": """
output_type: multiple_choice
doc_to_text: "{{question}} "
doc_to_choice: choices
doc_to_target: label
target_delimiter: ""
metric_list: [{metric: acc}]
""",
    "read": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list:
  [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "write": """
output_type: generate_until
doc_to_text: question
doc_to_target: answer
generation_kwargs: {until: ["UNTIL"], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture(
    scope="module",
    params=["encoder_decoder", pytest.param("lm", marks=pytest.mark.slower)],
)
def run(request, tmp_path_factory):
    """A run's folder, and the options with which `score` reads texts as they are."""
    folder = tmp_path_factory.mktemp(request.param)
    model_dir = folder / "run"
    if request.param == "lm":
        texts = write_text(folder / "texts")
        arguments = [
            "--gin_file=models/gmlp_lm_tiny.gin",
            "--gin_file=runs/lm.gin",
            f"--gin.text_files.directory='{texts}'",
            "--gin.FEATURE_LENGTHS={'targets': 32}",
            "--gin.MAX_LENGTH=32",
            "--gin.VOCABULARY=@byte_vocabulary()",
            "--gin.VOCABULARY_FILE=None",
            "--gin.VOCAB_SIZE=259",
            "--gin.D_MODEL=16",
            "--gin.D_FF=32",
            "--gin.NUM_LAYERS=2",
            "--gin.WarmupLinearDecay.total_steps=2",
            *(x for x in TINY if x.split("=")[0] in ("--gin.BATCH_SIZE",)),
            *(x for x in TINY if "train" in x.lower() or "WARMUP" in x),
        ]
        run_command("train", [f"--model_dir={model_dir}", *arguments])
        yield model_dir, []
        text_files.data_folder.set(None)
    else:
        model_dir.mkdir()
        train_run(model_dir, "bytes")
        task = toy_task({"dev": [("a", "b")]}, name="without_eos", metric_fns=[])
        features = {
            "inputs": seqio.Feature(byte_vocabulary()),
            "targets": seqio.Feature(byte_vocabulary(), add_eos=False),
        }
        seqio.TaskRegistry.add_provider(
            task.name, task.replace(output_features=features)
        )
        yield model_dir, [f"--gin.Run.task='{task.name}'"]
        seqio.TaskRegistry.remove(task.name)
    gin.clear_config()


def write_task(folder, task, rows, yaml):
    text = COMMON.format(folder=folder, task=task) + yaml
    (folder / f"{task}.yaml").write_text(text)
    with open(folder / f"{task}.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def scores_of(run, pairs, folder):
    """The log-likelihoods that `score` gives (inputs, targets)."""
    model_dir, options = run
    lines, scores = folder / "lines", folder / "scores"
    lines.write_text("".join("\t".join(pair) + "\n" for pair in pairs))
    files = [f"--input={lines}", f"--output={scores}"]
    run_command("score", [f"--model_dir={model_dir}", *files, *options])
    return [float(line.split("\t")[0]) for line in scores.read_text().splitlines()]


def answers_of(run, questions, folder):
    lines, answers = folder / "lines", folder / "answers"
    lines.write_text("".join(question + "\n" for question in questions))
    files = [f"--input={lines}", f"--output={answers}"]
    length = f"--gin.text_to_text.max_length={NEW_TOKENS}"
    run_command("infer", [f"--model_dir={run[0]}", *files, length])
    found = answers.read_bytes().splitlines()
    return [x.decode("utf-8", "replace").replace("\\n", "\n") for x in found]


def total_of(run, text, folder):
    """The log-likelihood of a text, in the parts that the model reads."""
    model_dir, options = run
    if options:  # an encoder-decoder, whose targets have 16 tokens
        parts = [text[i : i + 16] for i in range(0, len(text), 16)]
        return sum(scores_of(run, [("", part) for part in parts], folder))
    book, total = folder / "book", folder / "total"
    book.write_text(text)
    files = [f"--input={book}", f"--output={total}"]
    run_command("score", [f"--model_dir={model_dir}", *files, "--stride=31"])
    return float(total.read_text().split("\t")[0])


@pytest.mark.slower
def test_the_harness_says_what_score_and_infer_say(run, tmp_path, capsys):
    model_dir, _ = run
    answers = answers_of(run, [row["question"] for row in ROWS], tmp_path)
    until = max(answers, key=len)[1]  # it cuts one at least
    ends = [answer.split(until)[0] for answer in answers]
    assert ends != answers
    # The first row's answer is not what is asked for.
    asked = [answer + "x" * (i == 0) for i, answer in enumerate(ends)]
    rows = [row | {"answer": x} for row, x in zip(ROWS, asked, strict=True)]
    write_task(tmp_path, "choose", rows, YAML["choose"])
    write_task(tmp_path, "read", [{"text": text} for text in TEXTS], YAML["read"])
    until = json.dumps(until)
    write_task(tmp_path, "write", rows, YAML["write"].replace('"UNTIL"', until))
    output = tmp_path / "output.json"
    options = [f"--model_dir={model_dir}", f"--include_path={tmp_path}"]
    tasks = "--tasks=choose,read,write"
    run_command("lm_eval", [*options, tasks, f"--output={output}"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("choose", "word_perplexity", "exact_match"))
    found = json.loads(output.read_text())
    assert found["config"]["model_dir"] == str(model_dir)
    assert found["config"]["step"] == 1

    samples = {name: found["samples"][name] for name in YAML}
    pairs = [(row["question"], f" {x}") for row in ROWS for x in row["choices"]]
    expected = scores_of(run, pairs, tmp_path)
    said = [float(r[0]) for s in samples["choose"] for (r,) in s["resps"]]
    np.testing.assert_allclose(said, expected, atol=1e-3)
    right = 0
    for row in ROWS:
        number = len(row["choices"])
        likelihoods, expected = expected[:number], expected[number:]
        right += int(np.argmax(likelihoods) == row["label"])
    assert found["results"]["choose"]["acc,none"] == right / len(ROWS)

    loss = -sum(total_of(run, text, tmp_path) for text in TEXTS)
    words = sum(len(text.split()) for text in TEXTS) + 1  # the last space ends one too
    num_bytes = sum(map(len, TEXTS))
    metrics = found["results"]["read"]
    assert metrics["word_perplexity,none"] == pytest.approx(
        math.exp(loss / words), rel=1e-3
    )
    assert metrics["byte_perplexity,none"] == pytest.approx(
        math.exp(loss / num_bytes), rel=1e-4
    )
    assert metrics["bits_per_byte,none"] == pytest.approx(
        loss / num_bytes / math.log(2), rel=1e-4
    )

    assert [s["resps"] for s in samples["write"]] == [[[answer]] for answer in ends]
    assert found["results"]["write"]["exact_match,none"] == 0.75


def test_in_python(run, tmp_path):
    write_task(tmp_path, "choose", ROWS, YAML["choose"])
    results = lm_eval.simple_evaluate(
        model=harness_model(rt.load(run[0], 1), batch_size=2),
        tasks=["choose"],
        task_manager=lm_eval.tasks.TaskManager(
            include_path=str(tmp_path), include_defaults=False
        ),
        bootstrap_iters=0,
    )
    pairs = [(row["question"], f" {x}") for row in ROWS for x in row["choices"]]
    said = [float(r[0]) for s in results["samples"]["choose"] for (r,) in s["resps"]]
    np.testing.assert_allclose(said, scores_of(run, pairs, tmp_path), atol=1e-3)


def test_a_task_that_is_not_there(run, tmp_path):
    write_task(tmp_path, "choose", ROWS, YAML["choose"])
    options = [f"--model_dir={run[0]}", f"--include_path={tmp_path}"]
    message = "no task 'chose'.*Nearest: choose. It has: choose."
    with pytest.raises(configuration.UserError, match=message):
        run_command("lm_eval", [*options, "--tasks=chose"])
