"""A run with its weights, to ask from Python."""

import dataclasses
import functools
import itertools
import os
import secrets
import tempfile
import types
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.vocabularies import describe_vocabularies
from remixer_tf.decoding import check_writes
from remixer_tf.decoding.row_random import seed_words
from remixer_tf.errors import (
    UserError,
    check_choices,
    check_evaluations,
    check_flags,
    check_integers,
    check_paths,
    check_unicode,
)
from remixer_tf.evaluation.results import metrics_at, metrics_by_name, with_unit
from remixer_tf.exporting import check_export, export_run
from remixer_tf.layers.base import reads_at_once
from remixer_tf.loaded import encoders, fitting, searches
from remixer_tf.loaded.inputs import LongTexts, check_listed, listed
from remixer_tf.loaded.settings import Settings
from remixer_tf.models import EncoderOnly, ImageClassifier, SpanHead
from remixer_tf.models.build import build_model, check_memory, machine_memory
from remixer_tf.models.keras_model import html_table
from remixer_tf.run import Run
from remixer_tf.serving.token_graph import searchable
from remixer_tf.startup import check_backend
from remixer_tf.weights.adapters import load_adapters
from remixer_tf.weights.run import write_run
from remixer_tf.weights.source import check_model, take

Texts = str | Sequence[str]
Path = str | os.PathLike


@dataclasses.dataclass(frozen=True, eq=False)
class RestoredRun(Run):
    """A `Run` that is restored once, for all that ask it."""

    checkpoint: tuple = (None, None)  # the folder, and the step as in `Run.restore`
    source: Any = None  # the `Source` of published weights; None for a run's folder
    onto: Any = None  # folder of adapters to load onto the weights; None for none

    @functools.cached_property
    def restored(self):
        """The `Engine` that has the model, and the step, an int."""
        if self.source is None:
            engine, step = super().restore(*self.checkpoint, merge=False)
        else:
            check_model(self.model, self.source)
            engine, step = self.engine(), 0
            engine.build_model(self.model, self.dtype_policy)
            take(engine.model, self.source)
        if self.onto is not None:
            load_adapters(engine.model, self.onto)
        return engine, step

    def without_adapters(self):
        """The run with its adapters, as they are now, added to their kernels."""
        engine, step = self.restored
        run = dataclasses.replace(self)
        run.__dict__["restored"] = run.merged(engine), step
        return run

    def in_float32(self):
        """As `Run.in_float32`, with the weights as they are now."""
        run = super().in_float32()
        if run is not self:
            engine, step = self.restored
            run.__dict__["restored"] = run.copied(engine), step
        return run

    def restore(self, model_dir=None, step=None, check=None, merge=None):
        """As `Run.restore`: always the engine and step of `restored`."""
        engine, step = self.restored
        if check:
            check(engine.model)
        return engine, step


_MOST_KEPT = 8  # graphs, or rather what `_once` keeps


def _once(method):
    """Keeps what a method returns while the model has the same variables.

    Graphs are traced for these: `enable_lora` adds variables, `quantize` replaces them.
    It keeps `_MOST_KEPT` results, those that were asked for last.
    """

    @functools.wraps(method)
    def kept(self, *args):
        variables = [*map(id, self.model.variables)]
        if variables != self._traced_for:
            self._kept.clear()
            self._traced_for = variables
        key = method, *args
        found = self._kept.pop(key, None)
        if found is None:
            found = method(self, *args)
        self._kept[key] = found  # behind those that were asked for earlier
        if len(self._kept) > _MOST_KEPT:
            self._kept.pop(next(iter(self._kept)), None)
        return found

    return kept


class LoadedRun:
    """A run with its weights, from `remixer_tf.load`.

    A method that takes texts takes one str and returns one answer, or a list of str
    and returns a list of answers in its order. Answers are those of `remixer_tf infer`
    and `score`, and of an export.

    Attributes:
        run: the `Run`: task, lengths, precision, engine.
        settings: its `Settings`.
        model_dir: str, folder of the run; None for published weights, in memory.
        modules, trust: see `load`; `fit` hands them on.
        drawn_seed: int, the seed of the last answers that `generate` or `stream` drew
            without one; None before. Given as `seed` it draws them again.
    """

    drawn_seed = None

    def __init__(self, settings, model_dir=None, step=None, source=None, **allowed):
        self.settings, self.model_dir = settings, model_dir
        self.modules = allowed.get("modules", ())
        self.trust = allowed.get("trust", False)
        with settings.in_force():
            run = configuration.call("Run")
        fields = {f.name: getattr(run, f.name) for f in dataclasses.fields(Run)}
        checkpoint, onto = (model_dir, step), allowed.get("adapters")
        self.run = RestoredRun(
            **fields, checkpoint=checkpoint, source=source, onto=onto
        )
        self._kept, self._traced_for = {}, None  # See `_once`.

    @classmethod
    def of_folder(cls, model_dir, step=None, bindings=(), **allowed):
        """Loads a run's folder, on devices of this process; see `load`."""

        def read(bindings):
            options = types.SimpleNamespace(
                model_dir=model_dir,
                gin_file=[],
                gin_bindings=bindings,
                gin_search_paths=[],
                module_import=list(allowed.get("modules", ())),
                trust=allowed.get("trust", False),
            )
            configuration.read_run(options, devices="asked")

        return cls(Settings(read, bindings), model_dir, step, **allowed)

    @property
    def model(self) -> keras.Model:
        """The built and restored `keras.Model`."""
        return self._restored[0].model

    @property
    def step(self) -> int:
        """The step of the checkpoint, an int; 0 for published weights."""
        return self._restored[1]

    @functools.cached_property
    def task(self):
        """The `seqio.Task` or `seqio.Mixture`; None for a model of images."""
        if self.run.task is None:
            return None
        with self.settings.in_force():
            return self.run.get_task()

    @functools.cached_property
    def _restored(self):
        with self.settings.in_force():
            return self.run.restored

    def _rows(self):
        rows = {
            "run": self.model_dir or f"{self.run.source.format}, in memory",
            "model": f"{self.model.name}, {self.model.count_params():,} parameters",
            "step": self.step,
            "precision": self.run.dtype_policy,
        }
        if self.task is not None:
            lengths = self.run.feature_lengths.items()
            rows["task"] = self.task.name
            rows["lengths"] = ", ".join(f"{name} {n}" for name, n in lengths)
        found = metrics_at(self.model_dir, self.step) if self.model_dir else {}
        numbers = {k: v for k, v in found.items() if not isinstance(v, str)}
        if numbers:
            rows["metrics"] = ", ".join(
                f"{with_unit(name, value)} {value:.4g}"
                for name, value in numbers.items()
            )
        return rows

    def __reduce_ex__(self, protocol):
        raise UserError(
            "A loaded run holds graphs and devices: it can be neither pickled nor "
            "copied. Call remixer_tf.load in each process, or again for a second one."
        )

    def __repr__(self):
        rows = self._rows().items()
        return "\n".join(f"{name:>9}  {value}" for name, value in rows)

    def _repr_html_(self):
        """The same as a table, for notebooks."""
        return html_table(self._rows())

    def generate(
        self,
        texts: Texts,
        *,
        scores: bool = False,
        max_length: int | None = None,
        on_long: str = "warn",
        **search: Any,
    ) -> Any:
        """Answers texts.

        Args:
            texts: str, or list of str.
            scores: bool, whether an answer is (text, log-probability of its tokens).
            max_length: int, tokens of an answer at most; None for the run's.
            on_long: "warn" cuts texts that are longer than the model reads, and counts
                them in one warning. "raise" refuses them.
            **search: options of a search, in place of the run's own. `beam_search`
                takes `beams`, `n_best`, `rules`. `sample` takes `temperature`, `top_k`,
                `top_p`, `num_samples`, `seed`. All take those of `AnswerLimits`:
                `min_length`, `allowed` (a list of str or of ids),
                `no_repeat_ngram_size`, `repetition_penalty`. `batch_size` is 64.
                `skip_special_tokens` leaves out <extra_id_0> and other sentinels.
                Without a `seed`, here or in the run's `sample.seed`, each call draws
                other answers; the attribute `drawn_seed` repeats them.

        Returns:
            str for each text; a list of str, best first, where a text has several
            answers (`n_best`, `num_samples`).

        Raises:
            TypeError, ValueError: the model writes no text, or an argument does not
                fit.

        Examples:
            >>> answer = run.generate("the cat slept")
            >>> answers = run.generate(["A cat", "A dog"], beams=2, scores=True)
            >>> len(answers)
            2
        """
        size = search.pop("batch_size", 64)
        check_integers(batch_size=size)
        check_flags(scores=scores)
        texts, one = listed(texts)
        model, inputs = self._answerer(max_length, **search)
        ask = functools.partial(model.ask, settings=inputs) if inputs else model
        length = model.tokens.input_length
        long = LongTexts(on_long, f"texts are longer than {length} tokens")
        answers, rest = [], iter(texts)
        while batch := list(itertools.islice(rest, size)):
            found = ask(tf.constant(batch))
            long.count(batch, found["trimmed"].numpy())
            several = "all_outputs" in found
            names = ("all_outputs", "all_scores") if several else ("outputs", "scores")
            rows, values = (found[name].numpy() for name in names)
            for row, value in zip(rows, values, strict=True):
                if not several:
                    row, value = [row], [value]
                row = [text.decode("utf-8", "replace") for text in row]
                if scores:
                    row = list(zip(row, map(float, value), strict=True))
                answers.append(row if several else row[0])
        long.warn()
        return answers[0] if one else answers

    def stream(
        self, text: str, *, max_length: int | None = None, **search: Any
    ) -> Iterator[str]:
        """Answers a text, piece by piece as it is decoded. TensorFlow only.

        Args:
            text: str.
            max_length, **search: see `generate`; without beams and several samples.

        Yields:
            str, the next piece of the answer. Together they are what `generate` gives.

        Raises:
            TypeError, ValueError: as `generate`.

        Examples:
            >>> for piece in run.stream("the cat slept"):
            ...     print(piece, end="")
        """
        check_backend("stream()")
        if not isinstance(text, str):
            raise TypeError(f"stream() takes one str. Received: {text!r:.200}")
        check_unicode(text)
        return self._pieces(*self._answerer(max_length, **search), text)

    def _pieces(self, answerer, inputs, text):
        tokens, _ = answerer.read(tf.constant([text]))
        batch = searchable(tokens, inputs)
        prompt = np.count_nonzero(tokens) if answerer.codec.one_row else 0
        steps = self._decoding_step(), self._prefill(tokens.shape[1])

        def decode(tell):
            model = searches.TellingModel(self.model, *steps, prompt, tell)
            length = answerer.tokens.max_decode_length
            return answerer.tokens.decode_fn(model, batch, length).tokens.numpy()[0]

        ids, said = [], ""
        for new in searches.tokens_as_they_come(decode):
            ids = [*ids, new] if isinstance(new, int) else new
            found = answerer.write(np.asarray([ids], np.int32)).numpy()[0]
            # A character may end in a later token.
            whole = found.decode("utf-8", "ignore")
            if isinstance(new, int) and answerer.unsettled:
                whole = whole[: -answerer.unsettled]
            if len(whole) > len(said) and whole.startswith(said):
                piece, said = whole[len(said) :], whole
                yield piece

    def score(
        self,
        inputs: Texts,
        targets: Texts,
        *,
        batch_size: int = 64,
        on_long: str = "warn",
    ) -> float | list[float]:
        """Log-probabilities of targets, given inputs.

        Args:
            inputs, targets: str, or lists of str, as many.
            batch_size: int, pairs scored together.
            on_long: see `generate`.

        Returns:
            float, or list of float: the sum over the tokens of the targets, EOS
            included, in natural logarithms.

        Raises:
            TypeError, ValueError: the model gives texts no likelihood, or there are
                more inputs than targets, or fewer.

        Examples:
            >>> run.score("the cat slept", "sleep") < 0
            True
        """
        inputs, one = listed(inputs)
        targets, also_one = listed(targets)
        check_integers(batch_size=batch_size)
        if one != also_one or len(inputs) != len(targets):
            given = [
                "a str" if single else f"a list of {len(texts)}"
                for single, texts in ((one, inputs), (also_one, targets))
            ]
            raise UserError(
                "score() takes two str, or two lists of as many str. Received: "
                f"{' and '.join(given)}."
            )
        scorer = self._scoring()
        long = LongTexts(on_long, "pairs are longer than the model reads")
        pairs = (
            scorer.encode(a.encode(), b.encode())
            for a, b in zip(inputs, targets, strict=True)
        )
        sums = []
        found = scorer.score(pairs, batch_size)
        for text, (total, _, _, trimmed) in zip(inputs, found, strict=True):
            long.count([text], [trimmed])
            sums.append(total)
        long.warn()
        return sums[0] if one else sums

    def perplexity(self, text: str, *, stride: int | None = None) -> float:
        """The perplexity of a token of a text, by a language model.

        Args:
            text: str.
            stride: int, tokens scored at a time, given those before them; None for as
                many as the model reads: the fastest, but the first tokens of each piece
                have little context.

        Returns:
            float, `exp(-sum of log-probabilities / tokens)`.

        Raises:
            TypeError, ValueError: not a text, or the model is no language model.

        Examples:
            >>> lm.perplexity("to be or not to be") > 1
            True
        """
        if not isinstance(text, str) or not text:
            raise TypeError(f"perplexity() takes a text. Received: {text!r:.200}")
        check_unicode(text)
        scorer = self._scoring().keeping_ends()
        if not scorer.codec.one_row:
            raise UserError(
                "perplexity() is for language models, which read one text. Received: "
                f"{type(self.model).__name__}. score() takes inputs and targets."
            )
        stride = scorer.codec.row_length if stride is None else stride
        pairs = scorer.windows(text.encode(), stride)
        sums, counts, *_ = zip(*scorer.score(pairs, 64), strict=True)
        return float(np.exp(-sum(sums) / max(sum(counts), 1)))

    def classify(
        self, inputs: Any, *, on_long: str = "warn"
    ) -> encoders.Class | list[encoders.Class]:
        """Says the class of texts or of images. TensorFlow only.

        Args:
            inputs: a text is a str, or a pair of str where the task has pairs. An image
                is a path of a JPEG or PNG, an array uint8 `[height, width, 3]`, or a
                PIL image. A list of texts or images is classified in its order.
            on_long: see `generate`.

        Returns:
            `Class`, or a list of them.

        Raises:
            FileNotFoundError: there is no such image.
            TypeError, ValueError: the model has no classes, or an input is something
                else.

        Examples:
            >>> found = encoder.classify("a charming journey")
            >>> found.label in ("negative", "positive") and 0 < found.probability <= 1
            True
        """
        if isinstance(self.model, ImageClassifier):
            check_choices(LongTexts.CHOICES, on_long=on_long)
            function = self._signature("classify_bytes")
            return encoders.classify_images(function, inputs)
        return self._encode("classify", inputs, encoders.classes, on_long)

    def embed(self, texts: Any, *, on_long: str = "warn") -> np.ndarray:
        """Vectors of texts. TensorFlow only.

        Args:
            texts, on_long: see `classify`.

        Returns:
            float32 `[width]`, or `[texts, width]`: the mean of the encoder's output
            over the tokens of a text, or what the model's `EmbeddingHead` makes of it,
            as imported from sentence-transformers.

        Raises:
            TypeError, ValueError: as `classify`.

        Examples:
            >>> encoder.embed(["a charming journey", "bleak"]).shape
            (2, 16)
        """
        rows = self._encode("embed", texts, lambda x: [*x["embeddings"]], on_long)
        if isinstance(rows, list) and not rows:
            return np.zeros([0, self.model.embedding_width], np.float32)
        return np.asarray(rows)

    def answer(
        self, question: Texts, text: Texts, *, on_long: str = "warn"
    ) -> str | list[str]:
        """Answers questions by the best span of a text, as SQuAD asks for.

        The text may have any length: it is read in overlapping windows (BERT's
        protocol, see `best_span`).

        Args:
            question: str, or list of str.
            text: str, for all questions; or list of str, as many as questions.
            on_long: of questions, see `generate`.

        Returns:
            str, or list of str; "" if the text has no answer.

        Raises:
            TypeError, ValueError: the model has no `SpanHead`, or there are more
                questions than texts, or fewer.

        Examples:
            >>> answer = spans.answer("who?", "it was Ann")
            >>> answer in "it was Ann"
            True
        """
        questions, one = listed(question)
        texts, one_text = listed(text)
        if one and not one_text:
            raise TypeError("answer() of one question takes one text, a str.")
        texts = texts * len(questions) if one_text else texts
        if len(questions) != len(texts):
            raise UserError(
                "answer() takes as many texts as questions, or one. Received: "
                f"{len(texts)} and {len(questions)}"
            )
        answerer = self._span_answerer()
        length = answerer.max_question_length
        long = LongTexts(on_long, f"questions are longer than {length} tokens")
        codec = self.run.codec(self.model)
        lengths = [len(codec.ids("inputs", text, eos=False)) for text in questions]
        long.count(questions, np.array(lengths) > length)
        pairs = list(zip(questions, texts, strict=True))
        found = [answer.text for answer in answerer(pairs)]
        long.warn()
        return found[0] if one else found

    def fit(
        self,
        train: Path,
        model_dir: Path,
        *,
        validation: Path | None = None,
        steps: int = 1000,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        table: dict | None = None,
        bindings: Sequence[str] = (),
    ) -> "LoadedRun":
        """Fine-tunes the run on a table, and returns the new run.

        It is `remixer_tf train`, with its checkpoints, bar, logs and evaluations, by
        T5's recipe for fine-tuning: Adafactor with a constant rate after a warm-up.
        Called again with the same `model_dir` and table, it resumes from the last
        checkpoint.

        Args:
            train, validation: paths of tables in TSV, CSV, JSON lines, Arrow or
                Parquet. Loss and metrics of `validation` are computed at the end; None
                for none.
            model_dir: folder of the new run. It begins with this run's weights.
            steps: int, the step at which training ends.
            batch_size: int.
            learning_rate: float.
            table: dictionary of arguments of `table_task`, such as {"inputs":
                "translate: {en}", "targets": "{de}", "metrics": ["bleu"]}; None for
                the columns `inputs` and `targets`.
            bindings: list of str, more gin bindings.

        Returns:
            the `LoadedRun` of `model_dir`.

        Raises:
            FileNotFoundError: there is no such table.
            TypeError, ValueError: a row is bad, or an argument does not fit.

        Examples:
            >>> new = run.fit("train.tsv", "NEW", steps=2)
            >>> new.step
            2
        """
        fitting.check_trains(self)
        check_listed(bindings=bindings)
        check_paths(model_dir=model_dir)
        files = {"train": train} | ({"validation": validation} if validation else {})
        model_dir = os.path.expanduser(model_dir)
        recipe = steps, batch_size, learning_rate, validation is not None
        settings = self.settings.and_bindings(
            [
                *fitting.table_bindings(self, files, table),
                *fitting.training_bindings(*recipe),
                *bindings,
            ]
        )
        begun = os.path.exists(os.path.join(model_dir, configuration.RUN_FILE))
        if begun:
            fitting.check_continues(model_dir, train)
        with self.settings.in_force():
            engine, _ = self.run.without_adapters().restored
        with settings.in_force(), fitting.no_folder_if_refused(model_dir):
            run = configuration.call("Run")
            parts = run.model, run.dtype_policy
            check_memory(lambda: build_model(*parts), machine_memory())
            if not begun:
                task = run.get_task()
                for split in files:  # A bad table leaves no folder behind.
                    read_examples(task, split, run.feature_lengths, 1)
                vocabularies = describe_vocabularies(task)
                configuration.bind_relative_paths(model_dir)
                text = configuration.configuration_str()
                write_run(model_dir, engine.model, text, vocabularies)
            configuration.train(model_dir)
        return self.of_folder(model_dir, modules=self.modules, trust=self.trust)

    def evaluate(
        self, data: Path | None = None, *, table: dict | None = None
    ) -> dict[str, float]:
        """Evaluates, as `remixer_tf eval` does.

        Args:
            data: path of a table, see `fit`; None for the run's own task.
            table: see `fit`.

        Returns:
            dictionary {"TASK/SPLIT/METRIC": value}.

        Raises:
            FileNotFoundError: there is no such table, or the task's files are missing.
            TypeError, ValueError: a row is bad, or the run has no evaluations.

        Examples:
            >>> found = run.evaluate("dev.tsv")
            >>> sorted(found)
            ['table/validation/accuracy']
        """
        settings = self.settings
        if data is None and table is not None:
            raise UserError("table describes the table of data, which is missing.")
        if data is not None:
            bindings = fitting.table_bindings(self, {"validation": data}, table)
            settings = settings.and_bindings(bindings)
        engine, step = self._restored
        found = {}
        with settings.in_force(), tempfile.TemporaryDirectory() as folder:
            evaluations = configuration.get_value("evaluate.evaluations") or []
            check_evaluations(evaluations)
            for evaluation in evaluations:
                evaluation.check(folder, evaluations)
                for splits in (evaluation.run(folder, engine, step) or {}).values():
                    for result in splits.values():
                        found |= metrics_by_name(result)
        if not found:
            raise UserError("The run has nothing to evaluate (evaluate.evaluations).")
        return found

    def export(
        self,
        folder: Path,
        format: str = "saved_model",
        *,
        weights: str = "float32",
        **options: Any,
    ) -> str:
        """Exports the model with its tokenizer, as `remixer_tf export` does.

        Args:
            folder: str, of the export. It appears when it is whole.
            format, weights, **options: see `remixer_tf.exporting.export_run`.

        Returns:
            str, the folder.

        Raises:
            FileExistsError: the folder is there.
            ImportError: an extra is not installed.
            OSError: the folder cannot be written.
            ValueError: the format cannot hold the model, or an option does not fit.

        Examples:
            >>> run.export("EXPORT", weights="bfloat16")
            'EXPORT'
            >>> loaded = tf.saved_model.load("EXPORT").signatures["serving_default"]
            >>> answer = loaded(inputs=tf.constant(["the cat slept"]))["outputs"]
        """
        check_export(format, weights, **options)
        check_paths(folder=folder)
        if "warm_up" in options:
            check_flags(warm_up=options["warm_up"])
        folder = os.path.expanduser(os.fspath(folder))
        with self.settings.in_force():
            run = self.run if format == "adapters" else self.run.without_adapters()
            export_run(
                run,
                self.model_dir,
                folder,
                step=self.step,
                format=format,
                weights=weights,
                **options,
            )
        return folder

    def pictures(self) -> dict[str, Any]:
        """Draws mixing matrices, mean attention and alpha, on examples of the task.

        Returns:
            dictionary from a name to a matplotlib figure.

        Raises:
            FileNotFoundError: the task's files are missing.
            ValueError: no layer of the model mixes, attends or has an alpha.

        Examples:
            >>> figures = run.pictures()
            >>> len(figures) > 0
            True
        """
        name = "ImagePictures" if self.task is None else "Pictures"
        engine, step = self._restored
        with self.settings.in_force():
            return configuration.call(name, period=1).draw(engine.model, step)

    def mixing(self) -> dict[str, np.ndarray]:
        """The mixing matrices that do not depend on the input.

        Returns:
            dictionary from a layer's path to float32 `[heads, target, source]`, as its
            layer multiplies with it.

        Raises:
            ValueError: no layer of the model has any.

        Examples:
            >>> [matrix.shape for matrix in lm.mixing().values()]
            [(1, 64, 64)]
        """
        from remixer_tf.analysis.observe import observe

        with self.settings.in_force():
            lengths = self.run.feature_lengths
            spec = self.model.batch_spec(1, lengths) if lengths else {}
            batch = {name: np.ones(x.shape, x.dtype) for name, x in spec.items()}
            if not lengths:
                size = self.model.image_size
                batch["images"] = np.zeros([1, size, size, 3], np.float32)
            found = observe(self.model, batch)
        matrices = {o.layer.path: o.value for o in found if o.name == "mixing"}
        if not matrices:
            raise UserError(f"{self.model.name} has no static mixing to show.")
        return matrices

    def _answerer(self, max_length=None, skip_special_tokens=None, **search):
        """The `TextToText` of a search, and inputs of its graph, see `as_inputs`."""
        check_writes(self.model)
        searches.check_names(search)
        given = {}
        if skip_special_tokens is not None:
            check_flags(skip_special_tokens=skip_special_tokens)
            given["skip_special_tokens"] = skip_special_tokens
        if max_length is not None:
            searches.check_most("max_length", max_length, searches.LONGEST_ANSWER)
            given["max_decode_length"] = self._room(max_length)
        if "beams" in search:
            searches.check_most("beams", search["beams"], self.model.vocab_size)
        if "num_samples" in search:
            most = searches.LONGEST_ANSWER
            searches.check_most("num_samples", search["num_samples"], most)
        if search.get("allowed") is not None:
            codec = self.run.codec(self.model)
            search["allowed"] = searches.allowed_ids(search["allowed"], codec)
        same, inputs = searches.as_inputs(search)
        answerer, own, wants_seed = self._text_to_text(_Options(given), _Options(same))
        longest = max_length or answerer.tokens.max_decode_length
        searches.check_answers(own, search, longest)
        if max_length is not None:
            inputs["max_length"] = np.int32(max_length)
        if wants_seed and "seeds" not in inputs:
            self.drawn_seed = secrets.randbits(32)
            inputs["seeds"] = seed_words(self.drawn_seed)
        return answerer, inputs

    def _room(self, length):
        """The tokens that a graph has room for, to serve answers of this length."""
        if "inputs" not in self.task.output_features:
            return length  # The longer the answer, the shorter the prompt.
        prompt = 0
        if not hasattr(self.model, "encoder"):
            prompt = self.run.feature_lengths["inputs"]
        layers = getattr(self.model, "decoder", self.model)._flatten_layers()
        limits = [x.max_length for x in layers if getattr(x, "max_length", None)]
        most = min(limits, default=searches.LONGEST_ANSWER + prompt) - prompt
        return max(length, min(searches.room(length), most))

    @_once
    def _text_to_text(self, given, search):
        """A `TextToText`, the run's arguments of its search, and if it lacks a seed."""
        given = dict(given)
        with self.settings.in_force():
            own = configuration.get_arguments("text_to_text.decode_fn")
            found = searches.configured_search(search)
            wants_seed = searches.draws(search, found) and not (
                "seed" in own or configuration.is_set("sample.seed")
            )
            if found:
                given["decode_fn"] = self.settings.in_force()(found)
            answerer, _ = configuration.call(
                "text_to_text", self.run, self.model_dir, **given
            )
        return answerer, own, wants_seed

    @_once
    def _decoding_step(self):
        return tf.function(self.model.decode_step, autograph=False)

    @_once
    def _prefill(self, width):
        """The compiled `prefill` of prompts of a width; None if steps read them."""
        if not reads_at_once(self.model):
            return None
        return tf.function(self.model.prefill, autograph=False)

    @_once
    def _scoring(self):
        with self.settings.in_force():
            return configuration.call("text_scorer", self.run, self.model_dir)[0]

    @_once
    def _span_answerer(self):
        from remixer_tf.serving.span_answers import span_answerer

        if not isinstance(getattr(self.model, "head", None), SpanHead):
            kind = type(getattr(self.model, "head", self.model)).__name__
            raise UserError(
                "answer() needs an EncoderOnly with a SpanHead, as "
                f"runs/finetune_squad.gin trains it. Received: {kind}"
            )
        with self.settings.in_force():
            best = functools.partial(configuration.call, "best_span")
            search = self.settings.in_force()(best)
            return span_answerer(self.run, self.model_dir, decode_fn=search)[0]

    @_once
    def _signature(self, name):
        """A signature of an encoder's export, traced with gin's values."""
        check_backend(f"{name}()")
        kind = "text_encoder" if self.run.task is not None else "image_to_class"
        with self.settings.in_force():
            model, _ = configuration.call(kind, self.run, self.model_dir)
            found = model.signatures()
            if name not in found.functions:
                raise UserError(f"{name}(): {found.missing[name]}.")
            found.functions[name].get_concrete_function()
        return found.functions[name]

    def _encode(self, name, inputs, read, on_long):
        """Calls a signature of an encoder of texts."""
        if not isinstance(self.model, EncoderOnly):
            raise UserError(
                f"{name}() needs an EncoderOnly. Received: {type(self.model).__name__}"
            )
        length = self.run.feature_lengths["inputs"]
        long = LongTexts(on_long, f"texts are longer than {length} tokens")
        found = encoders.encode(self._signature(name), inputs, read, long)
        long.warn()
        return found


class _Options(dict):
    """Options, by which `_once` keeps what was made of them."""

    def __hash__(self):
        return hash(repr(sorted(self.items())))

    def __eq__(self, other):
        pairs = ((x, other[name]) for name, x in self.items())
        return super().__eq__(other) and all(_hold_the_same(*pair) for pair in pairs)


def _hold_the_same(value, other):
    """Whether equal values are so in what a class adds to a dataclass.

    Its == compares the dataclass' fields alone.
    """
    kind = type(value)
    if not dataclasses.is_dataclass(kind) or "__dataclass_fields__" in vars(kind):
        return True
    try:
        return value is other or vars(value) == vars(other)
    except ValueError:  # Arrays have no one truth.
        return False
