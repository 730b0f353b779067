"""Questions with choices, from files of JSON lines: COPA, ReCoRD, HellaSwag.

Each question is read in one of two forms. For models that were trained on inputs and
targets, an input and an answer; for language models of running text, how it begins and
how it goes on, with the space or the line break between them in front of the latter.
"""

import json
import re
from typing import NamedTuple

from remixer_tf.errors import UserError
from remixer_tf.tasks.folders import DataFolder, read_bytes

SPLITS = ("train", "validation")
PLACEHOLDER = "@placeholder"
_ASKED = {
    "cause": "What was the CAUSE of this?",
    "effect": "What happened as a RESULT?",
}


class Question(NamedTuple):
    """A question.

    Attributes:
        inputs: str.
        choices: list of str.
        correct: list of bool, of each choice; one or more are true.
    """

    inputs: str
    choices: list
    correct: list


class ChoiceFiles:
    """The files of a set of questions, in a folder that the user names.

    Args:
        name: str, in gin; `<name>.directory` names the folder.
        subfolder: str, of the folder REMIXER_TF_DATA.
        files: dictionary split -> names that its file may have; .gz may follow.
        parse: a function of a line's JSON and of whether it is for running text, that
            returns a list of `Question`.
        fields: str, what a line has to hold.
    """

    def __init__(self, name, subfolder, files, parse, fields):
        variable = f"REMIXER_TF_{name.upper()}_DIR"
        self.data_folder = DataFolder(name, variable, subfolder)
        self._files, self._parse, self._fields = files, parse, fields

    def read(self, split, running_text):
        """Returns a list of `Question`, in the form for running text or in the other.

        Raises:
            FileNotFoundError: the file is not there.
            ValueError: a line is not what is expected; the message names it.
        """
        path = self.data_folder.find_file(*self._files[split])
        questions = []
        # Not splitlines: JSON may hold other line breaks than \n.
        lines = read_bytes(path).decode("utf-8-sig").split("\n")
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                new = self._parse(json.loads(line), running_text)
                if not all(any(question.correct) for question in new):
                    raise UserError("no choice is correct")
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise UserError(
                    f"{path}, line {number}: expected a JSON object with "
                    f"{self._fields}. Received: {line[:200]!r} ({error!r})."
                ) from error
            questions += new
        return questions


def parse_copa(row, running_text):
    """COPA's question in its own words: the premise, and what is asked for.

    (Roemmele et al., 2011; the prompt is that of fairseq's language models.)
    """
    inputs = f"{row['premise']} {_ASKED[row['question']]}"
    choices = [row["choice1"], row["choice2"]]
    return [_question(inputs, choices, {row["label"]}, running_text, between="\n")]


def parse_record(row, running_text):
    """ReCoRD: which entity of a passage stands in a gap.

    The choices are the passage's entities, each once. In running text the query goes
    on with an entity and what follows the gap. (Zhang et al., 2018; Brown et al.,
    2020, ask so too.)
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
            inputs, between = before.rstrip(), before[len(before.rstrip()) :]
            choices = [f"{between}{entity}{after}" for entity in entities]
        questions.append(_question(inputs, choices, labels))
    return questions


def parse_hellaswag(row, running_text):
    """HellaSwag: how a text goes on, of what is not text in it only the title's dot.

    Rows of other sets (StoryCloze, PIQA) can be given its fields: ctx, endings, label,
    and perhaps activity_label. (Zellers et al., 2019.)
    """
    inputs = _plain(": ".join(filter(None, [row.get("activity_label"), row["ctx"]])))
    endings = [_plain(ending) for ending in row["endings"]]
    return [_question(inputs, endings, {int(row["label"])}, running_text, between=" ")]


def _question(inputs, choices, labels, running_text=False, between=""):
    """A `Question` of choices that all must be text; `labels` says which are right."""
    if not all(isinstance(choice, str) for choice in choices):
        raise TypeError("a choice is no text")
    if running_text:
        choices = [between + choice for choice in choices]
    return Question(inputs, choices, [i in labels for i in range(len(choices))])


def _plain(text):
    """Removes HellaSwag's "[header]", "[title]", "[step]" and the like."""
    text = re.sub(r"\[.*?\]", "", text.replace(" [title]", ". "))
    return " ".join(text.split())


COPA = ChoiceFiles(
    "copa",
    "superglue/COPA",
    {"train": ["train.jsonl"], "validation": ["val.jsonl"]},
    parse_copa,
    "premise, question ('cause' or 'effect'), choice1, choice2 and label (0 or 1)",
)
RECORD = ChoiceFiles(
    "record_files",  # T5 calls a preprocessor "record"
    "superglue/ReCoRD",
    # Those of FewGLUE where there is nothing else.
    {
        "train": ["train.jsonl", "train_fewglue32.jsonl"],
        "validation": ["val.jsonl", "train_fewglue_dev32.jsonl"],
    },
    parse_record,
    "passage (text, entities) and qas (query, answers among the entities)",
)
HELLASWAG = ChoiceFiles(
    "hellaswag",
    "hellaswag",
    {
        "train": ["hellaswag_train.jsonl", "train.jsonl"],
        "validation": ["hellaswag_val.jsonl", "val.jsonl"],
    },
    parse_hellaswag,
    "ctx, endings (a list) and label (a number)",
)
