"""Answers by an export of LiteRT or ONNX, to texts as its run reads them."""

import os

import seqio

from remixer_tf.checkpoints.export_folder import describe
from remixer_tf.checkpoints.vocabularies import check_vocabularies
from remixer_tf.data.codec import Codec
from remixer_tf.data.file_states import file_digest
from remixer_tf.data.language_model import LanguageModelFeatureConverter
from remixer_tf.data.vocabularies import describe_vocabularies
from remixer_tf.decoding.search import Answers, Decoded
from remixer_tf.errors import MissingFileError, UserError, library
from remixer_tf.serving.converted import RUNTIMES
from remixer_tf.serving.text_answers import TextAnswers


class ExportedText(TextAnswers):
    """Answers strings by the file of an export, in its runtime.

    The file has the search and the most tokens of an answer, so a call takes no
    settings.

    Args:
        folder: str, of an export of LiteRT or ONNX.
        task: the `seqio.Task` or `seqio.Mixture` of its run.
        feature_lengths: dictionary of ints, the run's.
        skip_special_tokens, clean_up_tokenization_spaces: see `text_to_text`.

    Raises a ValueError if the folder is damaged, a newer version wrote it, the task has
    another vocabulary, or the runtime cannot read the file; a FileNotFoundError if a
    file is missing; and an ImportError if the runtime is not installed.
    """

    def __init__(
        self,
        folder,
        task,
        feature_lengths,
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
    ):
        runtimes = {runtime.NAME: runtime for runtime in RUNTIMES.values()}
        about = describe(folder, {name: x.FILE for name, x in runtimes.items()})
        runtime = runtimes[about["format"]]
        library(runtime.MODULES[0], folder, runtime.EXTRA)
        path = os.path.join(folder, runtime.FILE)
        if not os.path.isfile(path):
            raise MissingFileError(f"{folder} lacks {runtime.FILE}. Copy it again.")
        if file_digest(path) != about["sha256"]:
            raise UserError(
                f"{path} is not the file that was exported: its SHA-256 differs. Copy "
                "the folder again."
            )
        check_vocabularies(folder, describe_vocabularies(task))
        converter = seqio.EncDecFeatureConverter
        if about["language_model"]:
            converter = LanguageModelFeatureConverter
        super().__init__(
            Codec(task, feature_lengths, converter),
            about["max_input_length"],
            skip_special_tokens,
            clean_up_tokenization_spaces,
        )
        self._path, self._run = path, _computed(path, runtime.load, path)

    def _batch(self, tokens, settings):
        return tokens

    def _decode(self, tokens):
        found = _computed(self._path, self._run, inputs=tokens)
        several = ()
        if "all_outputs" in found:
            several = Answers(found["all_outputs"], found["all_scores"])
        return Decoded(found["outputs"], found["scores"], several)


def _computed(path, function, *arguments, **inputs):
    """Calls a function of a runtime, which runs the file `path`."""
    try:
        return function(*arguments, **inputs)
    except Exception as error:  # a runtime's own, of no public class
        text = " ".join(str(error).split())
        raise UserError(f"{path} cannot be run: {text:.300}") from error
