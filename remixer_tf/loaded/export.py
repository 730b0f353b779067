"""An export of LiteRT or ONNX, to ask from Python."""

import copy
import dataclasses
import functools

from remixer_tf.errors import UserError, check_flags
from remixer_tf.exporting import answers_of_export
from remixer_tf.loaded import searches
from remixer_tf.loaded.run import LoadedRun
from remixer_tf.run import Weights


class LoadedExport(LoadedRun):
    """An export of LiteRT or ONNX, from `remixer_tf.load`.

    `generate` answers by its file. The search and the most tokens of an answer are
    those of the export. Methods that need a model are a ValueError.
    """

    def __init__(self, configuration, model_dir, step=None, **allowed):
        super().__init__(configuration, model_dir, **allowed)
        self._restored = Weights(self._refuse)
        self.run = dataclasses.replace(self.run, weights=self._restored)
        self._answers = answers_of_export(configuration, self.run, model_dir)

    def _refuse(self):
        raise UserError(
            f"{self.model_dir} is an export: generate() answers by it, and all else "
            "needs the run that it was made of. Call remixer_tf.load(RUN)."
        )

    def stream(self, *arguments, **options):
        """Raises a ValueError: a file gives whole answers."""
        self._refuse()

    def answerer(self, max_length=None, skip_special_tokens=None, **search):
        searches.check_names(search)
        search["max_length"] = max_length
        if given := [name for name, x in search.items() if x is not None]:
            raise UserError(
                f"{self.model_dir} holds one search, and takes no {given[0]}. Call "
                "generate() of its run, or export the run with another search (gin: "
                "text_to_text.decode_fn, text_to_text.max_length)."
            )
        answers = self._answers
        if skip_special_tokens is not None:
            check_flags(skip_special_tokens=skip_special_tokens)
            answers = copy.copy(answers)
            answers.write = functools.partial(
                answers.write, skip_special_tokens=skip_special_tokens
            )
        return answers, {}

    def _rows(self):
        return {
            "export": self.model_dir,
            "task": self.task.name,
            "lengths": f"inputs {self._answers.input_length}",
        }
