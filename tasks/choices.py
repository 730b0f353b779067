"""The tasks `{copa,record,hellaswag}_choices` and `..._choices_lm`: by likelihood.

Score them with `ScoredEvaluation`: each choice of a question is an example, and the
likeliest choice is the model's answer. The metrics are `correct`, the number of
questions answered correctly, out of `questions`; `chance`, the number that guessing
gets right on average; and `accuracy`, in percent. No training is needed. `train` has
only the correct choices, to train on; `validation` has all.

    copa_choices      inputs   The man broke his toe. What was the CAUSE of this?
                      targets  He got a hole in his sock.
    copa_choices_lm   the same, without EOS, and with a line break before the target

The first form, with EOS after inputs and targets, is for models trained on such pairs.
The second is running text, for language models of text files. Inputs that are too long
lose their beginning, since their end is next to the choices.

Folders: `copa.directory`, `record_files.directory` and `hellaswag.directory` in gin,
REMIXER_TF_COPA_DIR and so on, or superglue/COPA, superglue/ReCoRD and hellaswag in
REMIXER_TF_DATA. Files: SuperGLUE's train.jsonl and val.jsonl, HellaSwag's
hellaswag_train.jsonl and hellaswag_val.jsonl, perhaps with .gz. Source: Brown et al.,
"Language Models are Few-Shot Learners", 2020, section 2.4.
"""

import collections.abc
import functools
import json
import re
from typing import NamedTuple

import numpy as np
import seqio

from remixer_tf.data.codec import keep_end
from remixer_tf.errors import UserError
from remixer_tf.tasks.folders import DataFolder, read_bytes
from remixer_tf.tasks.rows import RowSource, byte_features
from remixer_tf.tasks.t5_library import function_of_t5
from remixer_tf.tasks.text_metrics import Percent

PLACEHOLDER = "@placeholder"
_ASKED = {
    "cause": "What was the CAUSE of this?",
    "effect": "What happened as a RESULT?",
}


class Question(NamedTuple):
    """A question, its choices, and for each whether it is correct, one at least."""

    inputs: str
    choices: list
    correct: list


class ChoiceFiles(NamedTuple):
    """The files of a set of questions."""

    data_folder: DataFolder
    files: dict  # split -> names that its file may have
    parse: collections.abc.Callable  # of a line's JSON, and of whether as running text
    fields: str  # what a line must hold

    def read(self, split, running_text):
        """Returns a list of `Question`, in the form for running text or in the other.

        Raises a ValueError that names a line which is not what is expected.
        """
        path = self.data_folder.find_file(*self.files[split])
        questions = []
        try:
            text = read_bytes(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not UTF-8: {error.reason} at byte {error.start}. Save the "
                "file as UTF-8."
            ) from error
        # Not splitlines: JSON may hold other line breaks than \n.
        lines = text.split("\n")
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                new = self.parse(json.loads(line), running_text)
                if not all(any(question.correct) for question in new):
                    raise UserError("no choice is correct")
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise UserError(
                    f"{path}, line {number}: expected a JSON object with "
                    f"{self.fields}. Received: {line[:200]!r} ({error!r})."
                ) from error
            questions += new
        return questions


def parse_copa(row, running_text):
    """COPA: the premise, and whether its cause or its effect is asked for.

    (Roemmele et al., 2011; the prompt is that of fairseq's language models.)
    """
    inputs = f"{row['premise']} {_ASKED[row['question']]}"
    choices = [row["choice1"], row["choice2"]]
    return [_question(inputs, choices, {row["label"]}, "\n" * running_text)]


def parse_record(row, running_text):
    """ReCoRD: the entity of a passage that fills a gap.

    The choices are the passage's entities, each once. In running text a choice is the
    entity and what follows the gap. (Zhang et al., 2018; the form is that of Brown et
    al., 2020.)
    """
    text, questions = row["passage"]["text"], []
    entities = [text[e["start"] : e["end"] + 1] for e in row["passage"]["entities"]]
    entities = list(dict.fromkeys(entities))
    passage = text.replace("\n@highlight\n", "\n- ")
    for qa in row["qas"]:
        answers = {answer["text"] for answer in qa["answers"]}
        labels = {i for i, entity in enumerate(entities) if entity in answers}
        inputs, choices = f"{passage}\n- {qa['query']}", entities
        if running_text:
            before, gap, after = inputs.partition(PLACEHOLDER)
            if not gap:
                raise UserError(f"the query has no {PLACEHOLDER}")
            inputs = before.rstrip()
            choices = [f"{before[len(inputs) :]}{x}{after}" for x in entities]
        questions.append(_question(inputs, choices, labels))
    return questions


def parse_hellaswag(row, running_text):
    """HellaSwag: the end of a text. Marks such as "[step]" are left out.

    Rows of other sets (StoryCloze, PIQA) can be given its fields: ctx, endings, label,
    and perhaps activity_label. (Zellers et al., 2019.)
    """

    def plain(text):
        text = re.sub(r"\[.*?\]", "", text.replace(" [title]", ". "))
        return " ".join(text.split())

    inputs = plain(": ".join(filter(None, [row.get("activity_label"), row["ctx"]])))
    endings = map(plain, row["endings"])
    return [_question(inputs, endings, {int(row["label"])}, " " * running_text)]


def _question(inputs, choices, labels, before=""):
    choices = [*choices]
    if not all(isinstance(choice, str) for choice in choices):
        raise TypeError("a choice is no text")
    correct = [i in labels for i in range(len(choices))]
    return Question(inputs, [before + choice for choice in choices], correct)


COPA = ChoiceFiles(
    DataFolder("copa", "superglue/COPA"),
    {"train": ["train.jsonl"], "validation": ["val.jsonl"]},
    parse_copa,
    "premise, question ('cause' or 'effect'), choice1, choice2 and label (0 or 1)",
)
RECORD = ChoiceFiles(
    DataFolder("record_files", "superglue/ReCoRD"),  # T5 has a preprocessor "record"
    {  # FewGLUE's files serve if SuperGLUE's are missing.
        "train": ["train.jsonl", "train_fewglue32.jsonl"],
        "validation": ["val.jsonl", "train_fewglue_dev32.jsonl"],
    },
    parse_record,
    "passage (text, entities) and qas (query, answers among the entities)",
)
HELLASWAG = ChoiceFiles(
    DataFolder("hellaswag", "hellaswag"),
    {
        "train": ["hellaswag_train.jsonl", "train.jsonl"],
        "validation": ["hellaswag_val.jsonl", "val.jsonl"],
    },
    parse_hellaswag,
    "ctx, endings (a list) and label (a number)",
)


def choices(targets, scores):
    """A metric of scores: on how many questions the likeliest choice is correct.

    A question without all of its choices, as `max_examples` can leave the last one, is
    left out. If several choices are likeliest, the first counts. Returns the numbers of
    the module's docstring.

    Scores are log-likelihoods. Targets are tuples from T5's postprocessor
    `rank_classification`: (question, choice), whether it is correct, a weight and a
    length, both unused, and the number of the question's choices.
    """
    found = collections.defaultdict(list)
    for (place, is_correct, _, _, size), score in zip(targets, scores, strict=True):
        found[place[0], size].append((place[1], bool(is_correct), score))
    questions = [
        zip(*sorted(rows), strict=True)
        for (_, size), rows in found.items()
        if len(rows) == size
    ]
    if not questions:
        raise UserError(
            "No question has all of its choices. Received: "
            f"{len(targets)} of {targets[0][-1]}. Raise max_examples."
        )
    correct, chance = 0, 0.0
    for _, labels, likelihoods in questions:
        correct += labels[int(np.argmax(likelihoods))]
        chance += sum(labels) / len(labels)
    return {
        "accuracy": Percent(100 * correct / len(questions)),
        "correct": correct,
        "chance": chance,
        "questions": len(questions),
    }


def _add_task(name, files, running_text):
    def read_rows(split):
        return [
            (question.inputs, choice, [number, i], correct, len(question.choices))
            for number, question in enumerate(files.read(split, running_text))
            for i, (choice, correct) in enumerate(
                zip(question.choices, question.correct, strict=True)
            )
            if correct or split != "train"
        ]

    names = ("inputs", "targets", "idx", "is_correct", "num_choices")
    seqio.TaskRegistry.add(
        name,
        source=RowSource(read_rows, tuple(files.files), names),
        preprocessors=[
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            keep_end,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=byte_features(add_eos=not running_text),
        postprocess_fn=functools.partial(
            function_of_t5("data.postprocessors", "rank_classification"),
            passthrough_feature_keys=["num_choices"],
        ),
        metric_fns=[choices],
    )


for _name, _files in (("copa", COPA), ("record", RECORD), ("hellaswag", HELLASWAG)):
    _add_task(f"{_name}_choices", _files, running_text=False)
    _add_task(f"{_name}_choices_lm", _files, running_text=True)
