"""Pictures of a checkpoint, on examples of text or on images.

`train.evaluations` or `python -m remixer_tf pictures` draws them. The folder
<model_dir>/pictures/<step> has PNG files, and index.html with all of them. TensorBoard
has them in <model_dir>/tensorboard/pictures.
"""

import base64
import html
import io
import os
from typing import NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from remixer_tf.analysis.comparison import titles_of
from remixer_tf.analysis.observe import observe, token_name
from remixer_tf.arguments import PositiveInt, TheRun, checked
from remixer_tf.checkpoints import reading
from remixer_tf.checkpoints.whole_folder import write_whole
from remixer_tf.data.classification import join_ids
from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import batch_examples, converter_for, read_examples
from remixer_tf.data.images import eval_images
from remixer_tf.data.pipeline import data_of
from remixer_tf.data.vocabularies import special_ids
from remixer_tf.decoding import greedy_decode
from remixer_tf.engines.backend_engine import engine_of
from remixer_tf.errors import UserError
from remixer_tf.evaluation.splits import default_splits
from remixer_tf.models.build import build_model
from remixer_tf.training.run_folder import check_writable


class Seen(NamedTuple):
    """What pictures show of a model."""

    where: str  # step and examples, for the titles
    step: int
    observations: list  # of `Observation`
    image_side: int | None  # patches of an image's side
    text: tuple | None = None  # a text's observations and tokens, see `draw_attention`


def draw_checkpoints(parts, *, step=None):
    """Draws checkpoints in the same figures; returns the path of the first one's page.

    Args:
        parts: {model_dir: function}. The function returns a `Run` and a `Pictures`.
        step: int; None for the newest checkpoint of each, "best" for the best.

    Raises a ValueError if a checkpoint does not fit its model, or `Pictures` raises it.
    """
    folders = list(parts)
    if tf.io.gfile.isdir(folders[0]):
        check_writable(folders[0])
    models = {}
    names = titles_of(folders) if len(folders) > 1 else [""]
    for name, folder in zip(names, folders, strict=True):
        run, pictures = parts[folder]()
        model = build_model(run.make_model, run.dtype_policy)
        found = reading.restore_model(folder, model, step)
        models[name] = pictures.see(model, found)
    return write_page(folders[0], models[names[0]].step, draw_seen(models))


def draw_seen(models):
    """Draws {title: `Seen`} in the same figures; the title is "" for one model alone.

    Returns {name: figure}.
    """
    # Here, since matplotlib is slow to import.
    from remixer_tf.analysis.panels import draw_attention, draw_models

    where = _join({title: seen.where for title, seen in models.items()})
    observed = {t: (seen.observations, seen.image_side) for t, seen in models.items()}
    figures = draw_models(observed, where)
    texts = {title: seen.text for title, seen in models.items() if seen.text}
    steps = _join({title: f"step {models[title].step}" for title in texts})
    attention = draw_attention(texts, f"attention in a text, {steps}")
    if texts and not attention:
        raise UserError(
            "text asks for the attention in it, and no layer of the model attends. "
            "Leave it out."
        )
    return figures | attention


def _join(texts):
    """Joins {title: text}: the text, if all are the same."""
    if len({*texts.values()}) < 2:
        return next(iter(texts.values()), "")
    return "\n".join(f"{title}: {text}" for title, text in texts.items())


class _Pictures:
    """Draws a model on examples: for a run, an `Evaluation` without numbers."""

    def check(self, model_dir, others=()):
        pass

    def results(self, model_dir, model, bindings=None):
        return []

    def metric_names(self, wanted=""):
        return set()

    def run(self, model_dir, engine, step, force=False, **key):
        """Draws and writes on the first host, if forced or if there is no page yet."""
        with engine.whole_model() as model:
            there = not force and tf.io.gfile.exists(page_path(model_dir, step))
            if engine.host.index == 0 and not there:
                self.draw_page(model_dir, model, step)

    def draw_page(self, model_dir, model, step):
        """Draws and writes, and returns the path of the page."""
        return write_page(model_dir, step, self.draw(model, step))

    def draw(self, model, step):
        """Returns the figures, by name; see `draw_page`."""
        return draw_seen({"": self.see(model, step)})

    def see(self, model, step):
        """Returns the `Seen` of a model; raises a ValueError if there is nothing."""
        batch, source = self._examples(model)
        where = f"{len(next(iter(batch.values())))} examples of {source}, step {step}"
        observations = observe(model, batch)
        if not observations:
            raise UserError(
                f"The model {model.name!r} has nothing to show: no layer of it mixes "
                "tokens, attends or has an alpha. Expected: a model with one of them."
            )
        return Seen(where, step, observations, self._image_side(model))

    def _image_side(self, model):
        """Returns the number of patches of an image's side, or None for text."""


class ImagePictures(_Pictures):
    """Draws an image classifier on the first images of a split.

    Rows of a dense mixing matrix are shown as images of the patches (gMLP, Figure 3).

    Args:
        source, transforms, split: see `remixer_tf.data.images.eval_images`.
        period: int, steps between drawings; the last step is always drawn.
        batch_size: int, the number of images.
    """

    @checked
    def __init__(
        self,
        source,
        transforms,
        *,
        period: PositiveInt,
        batch_size: PositiveInt = 16,
        split="validation",
    ):
        self.period = period
        self._name = f"{source.name}/{split}"
        self._images = eval_images(
            source, transforms, batch_size=batch_size, split=split
        )

    def _examples(self, model):
        batch = next(self._images.as_numpy_iterator())
        real = batch["label_weights"][:, 0] > 0
        return {name: value[real] for name, value in batch.items()}, self._name

    def _image_side(self, model):
        return model.image_size // model.patch_size


class Pictures(_Pictures):
    """Draws a model of text on the first examples of a split.

    Args:
        task: registered name, `seqio.Task` or `seqio.Mixture` (its first task counts).
            None means the run's.
        period: int, steps between drawings. The last step is always drawn.
        run: a `Run`. Its vocabulary replaces the task's, and its task and lengths are
            the defaults.
        feature_lengths: dictionary of ints. Longer features are cut.
        batch_size: int, the number of examples.
        split: str. None means the first whose name does not start with "train"; if
            there is none, it is a ValueError.
        text: str, or a list of one or two. Attention between its tokens and those of
            the greedy answer is drawn. Encoders write no answer, and read [CLS] text
            [SEP] or, for two texts, [CLS] text [SEP] text [SEP].
        feature_converter: a `seqio.FeatureConverter` class; None for the model's, see
            `converter_for`.
    """

    @checked
    def __init__(
        self,
        task=None,
        *,
        period: PositiveInt,
        run: TheRun | None = None,
        feature_lengths=None,
        batch_size: PositiveInt = 16,
        split=None,
        text=None,
        feature_converter=None,
    ):
        self.period = period
        task, self._feature_lengths = data_of(run, task, feature_lengths)
        self._task = seqio.get_subtasks(task)[0]
        self._split = split or next(iter(default_splits(self._task)), None)
        if self._split is None:
            raise UserError(
                f"{self._task.name} has training splits only. Name the one to draw "
                f"with split: {', '.join(sorted(self._task.splits))}."
            )
        self._batch_size = batch_size
        self._texts = [text] if isinstance(text, str) else list(text or ())
        self._feature_converter = feature_converter

    def see(self, model, step):
        if not self._texts:
            return super().see(model, step)
        reads = self._decode if hasattr(model, "start_decoding") else self._join
        self._text_batch, tokens = reads(model, self._text_ids(model))
        seen = super().see(model, step)
        observations = observe(model, self._text_batch)
        return seen._replace(text=(observations, tokens))

    def _examples(self, model):
        size, lengths = self._batch_size, self._feature_lengths
        try:
            examples = read_examples(self._task, self._split, lengths, size)
        except FileNotFoundError:
            if not self._texts:
                raise
            return self._text_batch, "text alone: there is no file of the task's"
        return self._batch(model, examples), f"{self._task.name}/{self._split}"

    def _batch(self, model, examples):
        """Returns one batch of arrays of all examples."""
        batch = batch_examples(examples, self._codec(model), batch_size=len(examples))
        (batch,) = batch.as_numpy_iterator()
        batch.pop("example_index")
        return batch

    def _codec(self, model):
        converter = self._feature_converter or converter_for(model)
        return Codec(self._task, self._feature_lengths, converter)

    def _text_ids(self, model):
        """Returns the token ids of each text, a list of lists."""
        decodes = hasattr(model, "start_decoding")
        if len(self._texts) > (1 if decodes else 2):
            raise UserError(
                f"{type(model).__name__} {model.name!r} reads one text, and an encoder "
                f"two at most. Received: text={self._texts}."
            )
        codec = self._codec(model)
        ids = [codec.ids("inputs", text, eos=decodes) for text in self._texts]
        longest = self._feature_lengths["inputs"]
        if not decodes:
            longest -= 1 + len(ids)  # [CLS], and each one's [SEP]
        number = sum(map(len, ids))
        if not 0 < number <= longest:
            raise UserError(
                f"The text has {number} tokens. Expected 1 to {longest}, at which "
                "feature_lengths cuts inputs. Shorten it."
            )
        return ids

    def _join(self, model, ids):
        """Returns an encoder's batch of one or two texts, and the tokens' names."""
        vocabulary = self._task.output_features["inputs"].vocabulary
        special = special_ids(vocabulary)
        first, second = [*map(tf.constant, ids), None][:2]
        length = self._feature_lengths["inputs"]
        tokens, types = join_ids(first, second, length, special)
        marks = {special.cls: "[CLS]", special.sep: "[SEP]"}
        names = [
            marks.get(token) or token_name(vocabulary, token)
            for token in tokens.numpy().tolist()
        ]
        batch = {
            "encoder_input_tokens": tokens[None].numpy(),
            "encoder_token_types": types[None].numpy(),
        }
        return batch, {"encoder": (names, names)}

    def _decode(self, model, ids):
        """Returns a batch of a text and its greedy answer, and the tokens' names."""
        (ids,) = ids
        lengths = self._feature_lengths
        features = self._task.output_features
        example = {"inputs": np.array(ids, "int32")}
        decode = engine_of(model).compile(
            lambda batch: greedy_decode(model, batch, lengths["targets"]).tokens
        )
        # As long as in evaluation, since some models do not mask padding.
        padded = ids + [0] * (lengths["inputs"] - len(ids))
        answer = decode({"encoder_input_tokens": np.array([padded], "int32")})[0]
        example["targets"] = answer[: np.flatnonzero(answer).max(initial=0) + 1]
        batch = self._batch(model, [example])
        written = {"encoder": example["inputs"], "decoder": example["targets"]}
        if "encoder_input_tokens" not in batch:  # A language model's one row.
            written = {"decoder": np.concatenate([*written.values()])}
        tokens = {}
        for stack, row in written.items():
            reads = batch[f"{stack}_input_tokens"][0][: len(row)]
            feature = features["inputs" if stack == "encoder" else "targets"]
            tokens[stack] = tuple(
                [token_name(feature.vocabulary, int(i)) for i in ids]
                for ids in (reads, row)
            )
        return batch, tokens


def page_path(model_dir, step):
    """Returns the path of the page of a step, which is written last."""
    return os.path.join(model_dir, "pictures", str(step), "index.html")


def write_page(model_dir, step, figures):
    """Writes figures as files, to TensorBoard and on a page; returns its path."""
    page = page_path(model_dir, step)
    folder = os.path.dirname(page)
    tf.io.gfile.makedirs(folder)
    title = html.escape(f"{os.path.basename(os.path.abspath(model_dir))}, step {step}")
    parts = [
        f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"\n<h1>{title}</h1>\n"
    ]
    board = os.path.join(model_dir, "tensorboard", "pictures")
    writer = tf.summary.create_file_writer(board)
    with writer.as_default(step):
        for name, figure in figures.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=110)
            png = buffer.getvalue()
            tf.summary.image(name, tf.io.decode_png(png, channels=3)[None])
            write_whole(os.path.join(folder, f"{name}.png"), png)
            data = f"data:image/png;base64,{base64.b64encode(png).decode()}"
            parts.append(f'<h2>{name}</h2>\n<img alt="{name}" src="{data}">\n')
    writer.close()
    write_whole(page, "".join([*parts, "</html>\n"]))
    return page
