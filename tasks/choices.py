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
(`copa.directory`, `record_files.directory`, `hellaswag.directory`), or
REMIXER_TF_COPA_DIR and so on; for the first two also superglue/COPA and
superglue/ReCoRD in the folder REMIXER_TF_DATA. They are SuperGLUE's train.jsonl and
val.jsonl, and HellaSwag's hellaswag_train.jsonl and hellaswag_val.jsonl. Source: Brown
et al., "Language Models are Few-Shot Learners", 2020, section 2.4.
"""

import collections
import functools

import numpy as np
import seqio

from remixer_tf.data.codec import keep_end
from remixer_tf.errors import UserError
from remixer_tf.tasks.choice_files import COPA, HELLASWAG, RECORD, SPLITS
from remixer_tf.tasks.rows import RowSource, byte_features
from remixer_tf.tasks.t5_library import function_of_t5


def choices(targets, scores):
    """A metric of scores: on how many questions the likeliest choice is correct.

    A question of which some choices are missing, as the last of `max_examples` can be,
    is left out. Of equals the first counts.

    Args:
        targets: list of tuples, as T5's postprocessor `rank_classification` makes them:
            (question, choice), whether it is correct, a weight and a length, which are
            not read, and the number of the question's choices.
        scores: list of float, the log-likelihoods.

    Returns:
        dictionary of numbers, see the module.

    Raises:
        ValueError: no question is whole.
    """
    found = collections.defaultdict(list)
    sizes = {}
    for ((question, choice), is_correct, _, _, size), score in zip(
        targets, scores, strict=True
    ):
        found[question].append((choice, bool(is_correct), score))
        sizes[question] = size
    questions = [
        zip(*sorted(rows), strict=True)
        for question, rows in found.items()
        if len(rows) == sizes[question]
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
        "accuracy": 100 * correct / len(questions),
        "correct": correct,
        "chance": chance,
        "questions": len(questions),
    }


def _source(files, running_text):
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
    return RowSource(read_rows, SPLITS, names)


def _add_task(name, files, running_text):
    seqio.TaskRegistry.add(
        name,
        source=_source(files, running_text),
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
