"""The tasks `{copa,record,hellaswag}_choices` and `..._choices_lm`: by likelihood.

Score them with `ScoredEvaluation`: each choice of a question is an example, and the one
whose text is likeliest is the model's. The metrics are `correct`, the number of
questions whose choice is right, beside `chance`, the number that guessing gets right on
average, of `questions`; and `accuracy`, in percent. No training is needed. `train` has
the correct choices alone, to train on; `validation` has all.

    copa_choices      inputs   The man broke his toe. What was the CAUSE of this?
                      targets  He got a hole in his sock.
    copa_choices_lm   the same, without EOS, and with a line break before the target

The first form, whose inputs and targets end in EOS, is for models trained on inputs and
targets; the second is running text, for language models of text files. Of inputs longer
than the model reads the end is kept, which is next to the choices.

The files, `choice_files.py` says how they are read, are in the folders that gin names
(`copa.directory`, `record.directory`, `hellaswag.directory`), or REMIXER_TF_COPA_DIR
and so on; for the first two also superglue/COPA and superglue/ReCoRD in the folder
REMIXER_TF_DATA. They are SuperGLUE's train.jsonl and val.jsonl, and HellaSwag's
hellaswag_train.jsonl and hellaswag_val.jsonl. Source: Brown et al., "Language Models
are Few-Shot Learners", 2020, section 2.4.
"""

import collections

import numpy as np
import seqio

from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks.choice_files import COPA, HELLASWAG, RECORD, SPLITS
from remixer_tf.tasks.rows import RowSource
from remixer_tf.tasks.t5_tasks import t5


def choices(targets, scores):
    """A metric of scores: on how many questions the likeliest choice is correct.

    Args:
        targets: list of tuples, as T5's postprocessor `rank_classification` makes them:
            (question, choice), whether it is correct, and others.
        scores: list of float, the log-likelihoods.

    Returns:
        dictionary of numbers: accuracy (in percent), correct, chance (the number of
        correct ones to expect of guessing) and questions. Of equals the first counts.

    Raises:
        ValueError: no choice of a question is correct.
    """
    questions = collections.defaultdict(list)
    for (index, is_correct, *_), score in zip(targets, scores, strict=True):
        questions[index[0]].append((index[1], bool(is_correct), score))
    correct, chance = 0, 0.0
    for number, found in questions.items():
        _, labels, likelihoods = zip(*sorted(found), strict=True)
        if not any(labels):
            raise ValueError(
                f"No choice of question {number} is correct. max_examples may have cut "
                "it in two: set another number."
            )
        correct += labels[int(np.argmax(likelihoods))]
        chance += sum(labels) / len(labels)
    return {
        "accuracy": 100 * correct / len(questions),
        "correct": correct,
        "chance": chance,
        "questions": len(questions),
    }


def keep_end(dataset, output_features, sequence_length=None):
    """A preprocessor: inputs that are too long lose their beginning."""
    if sequence_length is None:
        return dataset
    room = sequence_length["inputs"] - int(output_features["inputs"].add_eos)
    return dataset.map(lambda example: {**example, "inputs": example["inputs"][-room:]})


def _source(files, running_text):
    def read_rows(split):
        return [
            (question.inputs, choice, [number, i], correct)
            for number, question in enumerate(files.read(split, running_text))
            for i, (choice, correct) in enumerate(
                zip(question.choices, question.correct, strict=True)
            )
            if correct or split != "train"
        ]

    return RowSource(read_rows, SPLITS, ("inputs", "targets", "idx", "is_correct"))


def _add_task(name, files, running_text):
    feature = seqio.Feature(byte_vocabulary(), add_eos=not running_text)
    seqio.TaskRegistry.add(
        name,
        source=_source(files, running_text),
        preprocessors=[
            seqio.preprocessors.tokenize,
            keep_end,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={"inputs": feature, "targets": feature},
        postprocess_fn=t5.data.postprocessors.rank_classification,
        metric_fns=[choices],
    )


for _name, _files in (("copa", COPA), ("record", RECORD), ("hellaswag", HELLASWAG)):
    _add_task(f"{_name}_choices", _files, running_text=False)
    _add_task(f"{_name}_choices_lm", _files, running_text=True)
