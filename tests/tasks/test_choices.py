"""Questions with choices: the files, their two forms, and who is right."""

import json

import numpy as np
import pytest

from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.lengths import count_over_length
from remixer_tf.data.pipeline import get_task
from remixer_tf.evaluation.scored import ScoredExamples
from remixer_tf.evaluation.task_metrics import compute_metrics
from remixer_tf.tasks.choices import COPA, HELLASWAG, RECORD, choices
from tests.data.toy_tasks import train_dataset

LONG = {"inputs": 512, "targets": 128}
COPA_ROWS = [
    {
        "premise": "He fell.",
        "choice1": "Ice lay.",
        "choice2": "It was dry.",
        "question": "cause",
        "label": 0,
    },
    {
        "premise": "Ö.",
        "choice1": "A\u2028",
        "choice2": "B.",
        "question": "effect",
        "label": 1,
    },
]
PASSAGE = "Ann met Bob.\n@highlight\nAnn left"
RECORD_ROWS = [
    {
        "passage": {
            "text": PASSAGE,
            "entities": [
                {"start": 0, "end": 2},
                {"start": 8, "end": 10},
                {"start": 24, "end": 26},
            ],
        },
        "qas": [
            {"query": "So @placeholder was gone.", "answers": [{"text": "Ann"}]},
            {"query": "@placeholder stayed.", "answers": [{"text": "Bob"}]},
        ],
    }
]
HELLASWAG_ROWS = [
    {
        "activity_label": "Cooking",
        "ctx": "[header] How to cook [title] Boil [step] Take water",
        "endings": ["and heat it.", "[substeps] and  drink.", "or", "not."],
        "label": "1",
    },
    {"ctx": "Two.", "endings": ["x", "y"], "label": 0},
]


@pytest.fixture
def folder(tmp_path):
    """A folder with the files of all sets, which are named alike."""
    for files, name, rows in (
        (COPA, "copa", COPA_ROWS),
        (RECORD, "record", RECORD_ROWS),
        (HELLASWAG, "hellaswag", HELLASWAG_ROWS),
    ):
        (tmp_path / name).mkdir()
        for split in ("train", "val"):
            path = tmp_path / name / f"{split}.jsonl"
            path.write_text("\n".join(map(json.dumps, rows)) + "\n")
        files.data_folder.set(str(tmp_path / name))
    yield tmp_path
    for files in (COPA, RECORD, HELLASWAG):
        files.data_folder.set(None)


def texts(task, split="validation"):
    """The (inputs, targets) of a split, and which of them are correct."""
    examples = read_examples(get_task(task), split, LONG)
    pairs = [
        tuple(e[f"{name}_pretokenized"].decode() for name in ("inputs", "targets"))
        for e in examples
    ]
    return pairs, [bool(e["is_correct"]) for e in examples]


COPA_PROMPTS = [
    "He fell. What was the CAUSE of this?",
    "Ö. What happened as a RESULT?",
]
HOW_TO = "Cooking: How to cook. Boil Take water"


@pytest.mark.parametrize(
    "name, expected, correct",
    [
        (
            "copa_choices",
            [
                (COPA_PROMPTS[0], "Ice lay."),
                (COPA_PROMPTS[0], "It was dry."),
                (COPA_PROMPTS[1], "A\u2028"),
                (COPA_PROMPTS[1], "B."),
            ],
            [True, False, False, True],
        ),
        (
            "copa_choices_lm",
            [
                (COPA_PROMPTS[0], "\nIce lay."),
                (COPA_PROMPTS[0], "\nIt was dry."),
                (COPA_PROMPTS[1], "\nA\u2028"),
                (COPA_PROMPTS[1], "\nB."),
            ],
            [True, False, False, True],
        ),
        (
            "record_choices",
            [
                (f"Ann met Bob.\n- Ann left\n- {query}", entity)
                for query in ("So @placeholder was gone.", "@placeholder stayed.")
                for entity in ("Ann", "Bob")
            ],
            [True, False, False, True],
        ),
        (
            "record_choices_lm",
            [
                ("Ann met Bob.\n- Ann left\n- So", " Ann was gone."),
                ("Ann met Bob.\n- Ann left\n- So", " Bob was gone."),
                ("Ann met Bob.\n- Ann left\n-", " Ann stayed."),
                ("Ann met Bob.\n- Ann left\n-", " Bob stayed."),
            ],
            [True, False, False, True],
        ),
        (
            "hellaswag_choices",
            [
                *(
                    (HOW_TO, end)
                    for end in ("and heat it.", "and drink.", "or", "not.")
                ),
                ("Two.", "x"),
                ("Two.", "y"),
            ],
            [False, True, False, False, True, False],
        ),
        (
            "hellaswag_choices_lm",
            [
                *(
                    (HOW_TO, end)
                    for end in (" and heat it.", " and drink.", " or", " not.")
                ),
                ("Two.", " x"),
                ("Two.", " y"),
            ],
            [False, True, False, False, True, False],
        ),
    ],
)
def test_forms(folder, name, expected, correct):
    assert texts(name) == (expected, correct)
    right = [
        pair for pair, is_correct in zip(expected, correct, strict=True) if is_correct
    ]
    assert texts(name, "train") == (right, [True] * len(right))


def test_only_tasks_of_inputs_and_targets_end_in_eos(folder):
    for name, eos in (("copa_choices", True), ("copa_choices_lm", False)):
        for example in read_examples(get_task(name), "validation", LONG):
            for feature in ("inputs", "targets"):
                assert (example[feature][-1] == 1) == eos


@pytest.mark.parametrize("name, eos", [("copa_choices", [1]), ("copa_choices_lm", [])])
def test_of_long_inputs_the_end_is_kept_and_they_are_counted(folder, name, eos):
    task = get_task(name)
    whole, *_ = read_examples(task, "validation", LONG)
    lengths = {"inputs": 10, "targets": 128}
    short, *_ = read_examples(task, "validation", lengths)
    kept = [ord(letter) + 3 for letter in COPA_PROMPTS[0]][-10 + len(eos) :] + eos
    assert short["inputs"].tolist() == kept
    np.testing.assert_array_equal(short["targets"], whole["targets"])
    assert count_over_length(task, "validation", lengths).over == 4
    assert count_over_length(task, "validation", LONG).over == 0


def test_training_sees_the_correct_choices(folder):
    dataset = train_dataset("copa_choices", feature_lengths=LONG, batch_size=8, seed=1)
    targets = next(iter(dataset))["decoder_target_tokens"].numpy()[0]
    vocabulary = get_task("copa_choices").output_features["targets"].vocabulary
    assert {vocabulary.decode(row.tolist()) for row in targets} == {"Ice lay.", "B."}


def test_right_beside_chance(folder):
    task = get_task("hellaswag_choices")
    examples = read_examples(task, "validation", LONG)
    scores = np.array([-3.0, -2.0, -2.5, -9.0, -2.0, -1.0], "float32")
    scored = ScoredExamples(scores, np.ones(6, "int32"), np.ones(6, bool))
    order = [3, 0, 5, 2, 1, 4]  # of no matter
    for places in (range(6), order):
        shuffled = scored._replace(sums=scores[[*places]])
        found = compute_metrics(task, [examples[i] for i in places], shuffled.outputs())
        expected = {"accuracy": 50, "correct": 1, "chance": 0.75, "questions": 2}
        assert found == expected
    # max_examples may cut the last question.
    cut = scored._replace(sums=scores[:5])
    found = compute_metrics(task, examples[:5], cut.outputs())
    assert (found["correct"], found["chance"], found["questions"]) == (1, 0.25, 1)
    with pytest.raises(ValueError, match="No question has all .* 1 of 3"):
        choices([((1, 0), True, 1.0, 7, 3)], [-1.0])


@pytest.mark.parametrize(
    "row, words",
    [
        ({"premise": "a"}, "line 2: expected a JSON object with premise.*KeyError"),
        (COPA_ROWS[0] | {"label": 2}, "no choice is correct"),
        (COPA_ROWS[0] | {"label": -1}, "no choice is correct"),
        (COPA_ROWS[0] | {"choice1": 3}, "a choice is no text"),
        (COPA_ROWS[0] | {"question": "why"}, "'why'"),
        ("{", "Received: '\"{\"'"),
    ],
)
def test_a_wrong_line_is_named(folder, row, words):
    path = folder / "copa" / "val.jsonl"
    path.write_text(json.dumps(COPA_ROWS[0]) + "\n" + json.dumps(row))
    with pytest.raises(ValueError, match=words):
        COPA.read("validation", False)


def test_a_file_that_is_not_utf_8(folder):
    (folder / "copa" / "val.jsonl").write_bytes(b'{"premise": "caf\xe9"}\n')
    with pytest.raises(ValueError, match="val.jsonl is not UTF-8: .* at byte 16"):
        COPA.read("validation", False)


def test_a_file_that_is_not_there(folder):
    (folder / "hellaswag" / "val.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="hellaswag_val.jsonl.gz or val.jsonl"):
        HELLASWAG.read("validation", False)


@pytest.mark.real_data
def test_the_real_files(real_data_dir):
    for files, split, questions, sizes in (
        (COPA, "train", 400, {2}),
        (COPA, "validation", 100, {2}),
        (RECORD, "train", None, None),
        (RECORD, "validation", None, None),
    ):
        for running_text in (False, True):
            found = files.read(split, running_text)
            assert questions in (None, len(found)) and len(found) >= 32
            assert sizes in (None, {len(question.choices) for question in found})
            assert all(sum(q.correct) == 1 for q in found if files is COPA)


@pytest.mark.parametrize("name", ["copa", "record_files", "hellaswag"])
def test_gin_knows_the_folders_name(name, tmp_path, clear_gin):
    import gin

    gin.parse_config(f"{name}.directory = '{tmp_path}'")  # T5 has a "record" too
    files = {"copa": COPA, "record_files": RECORD, "hellaswag": HELLASWAG}[name]
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        files.read("train", False)
