"""A run with its weights, to ask from Python."""

import contextlib
import dataclasses
import functools
import itertools
import os
import queue
import tempfile
import threading
import types
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import gin
import keras
import numpy as np
import seqio
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.checkpoints import paths
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.vocabularies import describe_vocabularies
from remixer_tf.decoding import AnswerLimits, Sampling, check_writes
from remixer_tf.errors import UserError, nearest
from remixer_tf.evaluation.results import metrics_by_name
from remixer_tf.layers.checks import check_integers
from remixer_tf.models import EncoderOnly
from remixer_tf.run import Run

_BEAMS = {"beams", "n_best", "rules"}
_SAMPLING = {"temperature", "top_k", "top_p"}
_DRAWS = _SAMPLING | {"num_samples", "seed"}
_OF_ALL = {"min_length", "allowed", "no_repeat_ngram_size", "repetition_penalty"}


class Settings:
    """A configuration, which `with` puts in force: several runs have one each.

    Args:
        read: a function of a list of gin bindings that reads the configuration, and
            then these.
        bindings: list of str.
    """

    def __init__(self, read, bindings=()):
        self._read, self._bindings = read, [*bindings]
        self._before = []  # What stands again when blocks end, the innermost last.
        with kept_gin():
            read(self._bindings)
            self._text = gin.config_str(max_line_length=10**6)
            self._paths = paths.starts(), paths.run_being_read()

    def and_bindings(self, bindings):
        """Returns the same settings with more bindings after their own."""
        return Settings(self._read, [*self._bindings, *bindings])

    def __enter__(self):
        before = kept_gin()
        before.__enter__()
        self._before.append(before)
        gin.clear_config()
        gin.parse_config(self._text)
        paths.start_from(*self._paths)

    def __exit__(self, *error):
        self._before.pop().__exit__(None, None, None)


@contextlib.contextmanager
def kept_gin():
    """Puts gin's configuration back as it was, when the block ends."""
    text, locked = gin.config_str(max_line_length=10**6), gin.config_is_locked()
    starts = paths.starts(), paths.run_being_read()
    try:
        yield
    finally:
        gin.clear_config()
        gin.parse_config(text)
        if locked:
            gin.finalize()
        paths.start_from(*starts)


class Class(NamedTuple):
    """What `LoadedRun.classify` says of a text or an image.

    Attributes:
        label: str, the likeliest class, or its number where classes have no names.
        probability: float, of that class.
        probabilities: float32 `[classes]`.
    """

    label: Any
    probability: float
    probabilities: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LoadedRun(Run):
    """A `Run` with weights, from `remixer_tf.load`.

    What takes texts takes one str and gives one answer, or a list of str, of any
    length, and gives a list of answers in its order. Answers are those of
    `remixer_tf infer` and `score`, and of an export.

    Attributes:
        model_dir: str, folder of the run; None for published weights, in memory.
        step: int, the step of the checkpoint; None for the newest, "best" for the best.
        settings: the run's `Settings`.
        source: the `Source` of published weights; None for a run's folder.
        modules, trust: see `load`; `fit` hands them on.
    """

    model_dir: str | None = None
    step: int | str | None = None
    settings: Any = None
    source: Any = None
    modules: Sequence = ()
    trust: bool = False

    @classmethod
    def of(cls, settings, **given):
        """Makes the run of `Settings`, restored when it is first asked."""
        with settings:
            run = configuration.call("Run")
        fields = {f.name: getattr(run, f.name) for f in dataclasses.fields(Run)}
        return cls(**fields, settings=settings, **given)

    @classmethod
    def of_folder(cls, model_dir, step=None, bindings=(), modules=(), trust=False):
        """Makes that of a run's folder, on devices of this process; see `load`."""

        def read(bindings):
            options = types.SimpleNamespace(
                model_dir=model_dir,
                gin_file=[],
                gin_bindings=bindings,
                gin_search_paths=[],
                module_import=list(modules),
                trust=trust,
            )
            configuration.read_run(options, devices="asked")

        return cls.of(
            Settings(read, bindings),
            model_dir=model_dir,
            step=step,
            modules=modules,
            trust=trust,
        )

    def __repr__(self):
        rows = {
            "run": self.model_dir or f"{self.source.format}, in memory",
            "model": f"{self.weights.name}, {self.weights.count_params():,} parameters",
            "step": self._restored[1],
            "precision": self.dtype_policy,
        }
        if self.task is not None:
            rows |= {
                "task": self._task.name,
                "lengths": ", ".join(
                    f"{k} {n}" for k, n in self.feature_lengths.items()
                ),
            }
        return "\n".join(f"{name:>9}  {value}" for name, value in rows.items())

    @property
    def weights(self):
        """The built and restored `keras.Model`."""
        return self._restored[0].model

    @functools.cached_property
    def _task(self):
        with self.settings:
            return self.get_task()

    @functools.cached_property
    def _restored(self):
        """The `Engine` that has the model, and the step."""
        with self.settings:
            if self.source is None:
                return super().restore(self.model_dir, self.step)
            from remixer_tf.weights.source import take

            engine = self.engine()
            engine.build_model(self.model, self.dtype_policy)
            take(engine.model, self.source)
            return engine, 0

    def restore(self, model_dir=None, step=None, check=None):
        """As `Run.restore`: the engine and step that this run has."""
        engine, step = self._restored
        if check:
            check(engine.model)
        return engine, step

    def generate(
        self, texts, *, scores=False, max_length=None, on_long="warn", **search
    ):
        """Answers texts.

        Args:
            texts: str, or list of str.
            scores: bool, whether an answer is (text, log-probability of its tokens).
            max_length: int, tokens of an answer at most; None for the run's.
            on_long: what is done of texts longer than the model reads: "warn" counts
                them in a warning and cuts them as training does, "raise" refuses.
            **search: how answers are found, in place of the run's way: `beams`,
                `n_best` and `rules` of `beam_search`; or `temperature`, `top_k`,
                `top_p`, `num_samples` and `seed` of `sample`; with either, or with
                neither, `min_length`, `allowed`, `no_repeat_ngram_size` and
                `repetition_penalty` of `AnswerLimits`, where `allowed` may be a
                list of str. `skip_special_tokens` leaves out <extra_id_0> and
                its kin; `batch_size` (64) texts are answered together.

        Returns:
            an answer of each text, a str; with several answers to a text (`n_best`,
            `num_samples`) a list of them, best first.

        Raises:
            TypeError, ValueError: the model writes no text, or an argument does not
                fit.

        Example:
            >>> run = rt.load("RUN")                             # doctest: +SKIP
            >>> run.generate(["the cat slept"], beams=4)         # doctest: +SKIP
        """
        size = search.pop("batch_size", 64)
        check_integers(batch_size=size)
        _check_choice("on_long", on_long, ("warn", "raise"))
        texts, one = _listed(texts)
        model = self._answering(max_length, **search)
        answers, over = [], 0
        texts = iter(texts)
        while batch := list(itertools.islice(texts, size)):
            found = model(tf.constant(batch))
            over += int(found["trimmed"].numpy().sum())
            if over and on_long == "raise":
                raise UserError(
                    f"A text is longer than {model.tokens.input_length} tokens: "
                    f"{batch[int(np.argmax(found['trimmed']))]!r:.200}"
                )
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
        if over:
            warnings.warn(
                f"{over:,} of {len(answers):,} texts are longer than "
                f"{model.tokens.input_length} tokens: they were cut, as in training.",
                stacklevel=2,
            )
        return answers[0] if one else answers

    def stream(self, text, *, max_length=None, **search):
        """Answers a text, piece by piece as it is decoded.

        Args:
            text: str.
            max_length, **search: see `generate`; of one answer, without beams.

        Yields:
            str, the next piece of the answer. Together they are what `generate` gives.

        Raises:
            ValueError: as `generate`; beams, several answers, or JAX, which returns
                when all is decoded.
        """
        if keras.backend.backend() != "tensorflow":
            raise UserError("stream() needs TensorFlow. Unset KERAS_BACKEND.")
        if not isinstance(text, str):
            raise TypeError(f"stream() takes one str. Received: {text!r:.200}")
        answering = self._answering(max_length, **search)
        tokens, _ = answering.read(tf.constant([text]))
        batch = {"encoder_input_tokens": tokens}

        def decode(tell):
            model = _Telling(self.weights, self._step, tell)
            length = answering.tokens.max_decode_length
            return answering.tokens.decode_fn(model, batch, length).tokens.numpy()[0]

        ids, said = [], ""
        # The first is the decoder's start, or the last of a prompt.
        for new in itertools.islice(_tokens_as_they_come(decode), 1, None):
            ids = [*ids, new] if isinstance(new, int) else new
            whole = (
                answering.write(np.asarray([ids], np.int32))
                .numpy()[0]
                .decode("utf-8", "ignore")
            )
            if len(whole) > len(said) and whole.startswith(said):
                piece, said = whole[len(said) :], whole
                yield piece

    def score(self, inputs, targets, *, batch_size=64):
        """Log-probabilities of targets, given inputs.

        Args:
            inputs, targets: str, or lists of str, as many.
            batch_size: int, pairs scored together.

        Returns:
            float, or list of float: the sum over the tokens of the targets, EOS
            included, in natural logarithms.

        Raises:
            TypeError, ValueError: the model gives texts no likelihood, or as many
                inputs as targets are missing.
        """
        inputs, one = _listed(inputs)
        targets, also_one = _listed(targets)
        if len(inputs) != len(targets) or one != also_one:
            raise UserError(
                "score() takes as many inputs as targets. Received: "
                f"{len(inputs)} and {len(targets)}"
            )
        pairs = (
            self._scoring.encode(a.encode(), b.encode())
            for a, b in zip(inputs, targets, strict=True)
        )
        sums = [total for total, *_ in self._scoring.score(pairs, batch_size)]
        return sums[0] if one else sums

    def perplexity(self, text, *, stride=None):
        """The perplexity of a token of a text, by a language model.

        Args:
            text: str.
            stride: int, tokens scored at a time, given those before them; None for as
                many as the model reads, which is fastest and gives the first of them
                little to go by.

        Returns:
            float, `exp(-sum of log-probabilities / tokens)`.

        Raises:
            ValueError: the model is no language model.
        """
        if not isinstance(text, str) or not text:
            raise TypeError(f"perplexity() takes a text. Received: {text!r:.200}")
        scorer = self._scoring.keeping_ends()
        stride = scorer.codec.row_length if stride is None else stride
        pairs = scorer.windows(text.encode(), stride)
        sums, counts, *_ = zip(*scorer.score(pairs, 64), strict=True)
        return float(np.exp(-sum(sums) / max(sum(counts), 1)))

    def classify(self, inputs):
        """Says the class of texts or of images.

        Args:
            inputs: of a model of texts a str, a pair of str where its task has pairs,
                or a list of these. Of a model of images a path of a JPEG or PNG, an
                array uint8 `[height, width, 3]`, a PIL image, or a list of these.

        Returns:
            `Class`, or a list of them.

        Raises:
            TypeError, ValueError: the model says no classes, or an input is something
                else.
        """
        if self.task is None:
            return self._classify_images(inputs)
        return self._encode(inputs, "classify", _classes)

    def embed(self, texts):
        """Vectors of texts.

        Args:
            texts: see `classify`.

        Returns:
            float32 `[d_model]`, or `[texts, d_model]`: the mean of the encoder's output
            over the tokens that are there.
        """
        vectors = self._encode(texts, "embed", lambda found: [*found["embeddings"]])
        return np.asarray(vectors)

    def fit(
        self,
        train,
        model_dir,
        *,
        validation=None,
        steps=1000,
        batch_size=32,
        learning_rate=1e-3,
        table=None,
        bindings=(),
    ):
        """Trains the run on, on a table of one's own, and returns the new run.

        It is `remixer_tf train`, with its checkpoints, bar, logs and evaluations. The
        optimizer is Adafactor, the rate constant after a warm-up (T5's fine-tuning).
        Called again with the same `model_dir` it goes on from the last checkpoint.

        Args:
            train, validation: paths of tables in TSV, CSV, JSON lines, Arrow or
                Parquet. Validation has a loss and metrics at the end; None for none.
            model_dir: folder of the new run. It begins with this run's weights.
            steps: int, the step at which training ends.
            batch_size: int.
            learning_rate: float.
            table: dictionary of arguments of `table_task`, such as {"inputs":
                "translate: {en}", "targets": "{de}", "metrics": ["bleu"]}; None for
                the columns `inputs` and `targets`.
            bindings: list of str, more of gin's.

        Returns:
            the `LoadedRun` of `model_dir`.

        Raises:
            FileNotFoundError: there is no such table.
            ValueError: a row is bad, or an argument does not fit.
        """
        from remixer_tf.weights.run import write_run

        check_writes(self.weights)
        if "inputs" not in self.feature_lengths:
            raise UserError(
                "fit() trains on inputs and targets, and this run reads targets alone. "
                "Load it with bindings=[\"FEATURE_LENGTHS = {'inputs': 64, 'targets': "
                '64}"].'
            )
        files = {"train": train} | ({"validation": validation} if validation else {})
        model_dir = os.path.expanduser(model_dir)
        names = "LossEvaluation", "DecodedEvaluation"
        evaluations = ", ".join(f"@{name}()" for name in names if validation)
        period = [f"{name}.period = {steps}" for name in names if validation]
        settings = self.settings.and_bindings(
            [
                *self._table_bindings(files, table),
                f"Schedule.train_steps = {steps}",
                f"train.evaluations = [{evaluations}]",
                *period,
                *([] if validation else ["Checkpointing.best = None"]),
                f"Schedule.checkpoint_period = {steps}",
                f"Batching.batch_size = {batch_size}",
                "train.optimizer = @Adafactor",
                "Adafactor.learning_rate = @WarmupConstant()",
                f"WarmupConstant.learning_rate = {learning_rate}",
                f"WarmupConstant.warmup_steps = {min(100, steps // 10)}",
                *bindings,
            ]
        )
        with settings:
            run = configuration.call("Run")
            if not os.path.exists(os.path.join(model_dir, configuration.RUN_FILE)):
                task = run.get_task()
                for split in files:  # A bad table leaves no folder behind.
                    read_examples(task, split, run.feature_lengths, 1)
                vocabularies = describe_vocabularies(task)
                configuration.bind_relative_paths(model_dir)
                text = configuration.configuration_str()
                write_run(model_dir, self.weights, text, vocabularies)
            configuration.train(model_dir)
        return self.of_folder(model_dir, modules=self.modules, trust=self.trust)

    def evaluate(self, data=None, *, table=None):
        """Evaluates, as `remixer_tf eval` does.

        Args:
            data: path of a table, see `fit`; None for the run's own task.
            table: see `fit`.

        Returns:
            dictionary {"TASK/SPLIT/METRIC": value}.

        Raises:
            FileNotFoundError: there is no such table, or the task's files are not here.
            ValueError: a row is bad, or the task has nothing to evaluate.
        """
        settings = self.settings
        if data is not None:
            bindings = self._table_bindings({"validation": data}, table)
            settings = settings.and_bindings(bindings)
        engine, step = self._restored
        found = {}
        with settings, tempfile.TemporaryDirectory() as folder:
            for evaluation in configuration.get_value("evaluate.evaluations"):
                evaluation.check(folder, ())
                for splits in (evaluation.run(folder, engine, step) or {}).values():
                    for result in splits.values():
                        found |= metrics_by_name(result)
        return found

    def _table_bindings(self, files, table):
        """Bindings that make a table the run's task, with the run's vocabulary."""
        if self.task is None:
            raise UserError("The run is of images: a table holds texts.")
        for file in files.values():
            if not isinstance(file, (str, os.PathLike)):
                raise TypeError(
                    f"Expected: the path of a table. Received: {file!r:.200}"
                )
        table = {"inputs": "{inputs}", "targets": "{targets}"} | (table or {})
        expanded = {k: os.path.expanduser(file) for k, file in files.items()}
        table["files"] = {k: os.path.abspath(file) for k, file in expanded.items()}
        features = self._task.output_features
        vocabulary = features["targets"].vocabulary
        if isinstance(vocabulary, seqio.SentencePieceVocabulary):
            name = "fit/sentencepiece_vocabulary"
            file = os.path.abspath(vocabulary.sentencepiece_model_file)
            of = [f"{name}.path = {file!r}"]
        else:
            name, of = "fit/byte_vocabulary", []
        return [
            *of,
            f"{name}.extra_ids = {vocabulary.extra_ids}",
            *(f"{owner}.vocabulary = @{name}()" for owner in ("Run", "get_task")),
            "Run.task = @fit/table_task()",
            "get_task.name = @fit/table_task()",
            "train_dataset.task = @get_task()",
            "fit/table_task.name = 'table'",
            "fit/TableRows.header = True",
            "fit/TableRows.columns = None",
            "fit/table_task.rows = @fit/TableRows()",
            "fit/table_task.metrics = ['accuracy']",
            *(f"fit/table_task.{name} = {value!r}" for name, value in table.items()),
        ]

    def pictures(self):
        """Draws mixing matrices, mean attention and alpha, on examples of the task.

        Returns:
            dictionary from a name to a matplotlib figure.

        Raises:
            FileNotFoundError: the task's files are not here.
            ValueError: no layer of the model mixes, attends or has an alpha.
        """
        name = "ImagePictures" if self.task is None else "Pictures"
        engine, step = self._restored
        with self.settings:
            return configuration.call(name, period=1).draw(engine.model, step)

    def mixing(self):
        """The mixing matrices that do not depend on the input.

        Returns:
            dictionary from a layer's path to float32 `[heads, target, source]`, as its
            layer multiplies with it.

        Raises:
            ValueError: no layer of the model has any.
        """
        from remixer_tf.analysis.observe import observe

        with self.settings:
            lengths = self.feature_lengths or {}
            spec = self.weights.batch_spec(1, lengths) if lengths else None
            batch = _ones(spec) if spec else self._black_image()
            found = observe(self.weights, batch)
        matrices = {o.layer.path: o.value for o in found if o.name == "mixing"}
        if not matrices:
            raise UserError(f"{self.weights.name} has no static mixing to show.")
        return matrices

    def _answering(self, max_length=None, skip_special_tokens=None, **search):
        """The `TextToText` of a search, made once for each."""
        key = repr((max_length, skip_special_tokens, sorted(search.items())))
        known = self._answerers
        if key not in known:
            if search.get("allowed"):
                encode = functools.partial(self._codec.ids, "targets", eos=False)
                search["allowed"] = [
                    encode(answer) if isinstance(answer, str) else answer
                    for answer in search["allowed"]
                ]
            check_writes(self.weights)
            given = {}
            if skip_special_tokens is not None:
                given["skip_special_tokens"] = skip_special_tokens
            if max_length is not None:
                given["max_decode_length"] = max_length
            with self.settings:
                if search:
                    given["decode_fn"] = self._settled(_search(search))
                elif found := configuration.get_value("text_to_text.decode_fn"):
                    given["decode_fn"] = self._settled(found)
                model, _ = configuration.call(
                    "text_to_text", self, self.model_dir, **given
                )
            known[key] = model
        return known[key]

    @functools.cached_property
    def _codec(self):
        with self.settings:
            return self.codec(self.weights)

    def _settled(self, search):
        """A search that reads gin's values of this run, whenever it is traced."""

        def decode(*args):
            with self.settings:
                return search(*args)

        return decode

    @functools.cached_property
    def _answerers(self):
        return {}

    @functools.cached_property
    def _step(self):
        """One step of decoding, compiled."""
        return tf.function(self.weights.decode_step, autograph=False)

    @functools.cached_property
    def _scoring(self):
        with self.settings:
            return configuration.call("text_scorer", self, self.model_dir)[0]

    @functools.cached_property
    def _signatures(self):
        name = "text_encoder" if self.task is not None else "image_to_class"
        if name == "text_encoder" and not isinstance(self.weights, EncoderOnly):
            raise UserError(
                "classify() and embed() need an EncoderOnly. Received: "
                f"{type(self.weights).__name__}"
            )
        _on_tensorflow()
        with self.settings:
            return configuration.call(name, self, self.model_dir)[0].signatures()

    def _encode(self, inputs, name, read):
        """Calls a signature of an encoder on texts, or on pairs of them."""
        functions = self._signatures.functions
        if name not in functions:
            raise UserError(f"{name}(): {self._signatures.missing[name]}.")
        pair = isinstance(inputs, tuple) and len(inputs) == 2
        one = isinstance(inputs, str) or pair
        rows, results = [inputs] if one else list(inputs), []
        for start in range(0, len(rows), 64):
            texts = _columns(rows[start : start + 64], functions[name])
            found = functions[name](*texts)
            results += read({key: value.numpy() for key, value in found.items()})
        return results[0] if one else results

    def _classify_images(self, inputs):
        function = self._signatures.functions["classify_bytes"]
        one = not isinstance(inputs, list)
        rows, results = [inputs] if one else inputs, []
        for row in rows:
            found = function(tf.constant([_image_bytes(row)]))
            results += _classes({key: value.numpy() for key, value in found.items()})
        return results[0] if one else results

    def _black_image(self):
        size = self.weights.image_size
        return {"images": np.zeros([1, size, size, 3], np.float32)}


def _search(options):
    """The search that options of `generate` ask for, to be called with gin's values."""
    known = _BEAMS | _DRAWS | _OF_ALL
    for name in options:
        if name not in known:
            raise TypeError(
                f"generate() has no argument {name!r}.{nearest(name, known)}"
            )
    beams, draws = _BEAMS & options.keys(), _DRAWS & options.keys()
    if beams and draws:
        raise UserError(
            f"{min(beams)} is of beam search and {min(draws)} of sampling: name one."
        )
    configured = configuration.get_value("text_to_text.decode_fn")
    own = configuration.get_arguments("text_to_text.decode_fn")
    name = configured.__name__ if configured else "greedy_decode"
    wanted = "beam_search" if beams else "sample" if draws else name
    if wanted == "beam_search" and not {"rules"} & {*options, *own}:
        if not configuration.is_set("beam_search.rules"):
            options = {**options, "rules": configuration.call("T5Rules")}
    if wanted not in ("beam_search", "sample", "greedy_decode"):
        raise UserError(f"The run's search {wanted!r} takes its arguments in gin.")
    base, search = {}, configured
    if wanted != name or configured is None:
        # Another search has the run's own limits too.
        base = {k: own[k] for k in ("limits", "eos_id") if k in own}
        search = functools.partial(configuration.call, wanted)
    for kind, part, names in (
        (Sampling, "sampling", _SAMPLING),
        (AnswerLimits, "limits", _OF_ALL),
    ):
        if given := {name: options.pop(name) for name in names & options.keys()}:
            options[part] = dataclasses.replace(own.get(part) or kind(), **given)
    return functools.partial(search, **{**base, **options})


def _listed(texts):
    """Texts as a list of str, and whether it was one."""
    if isinstance(texts, str):
        return [texts], True
    if isinstance(texts, (bytes, dict)) or not hasattr(texts, "__iter__"):
        raise TypeError(f"Expected: a str or a list of str. Received: {texts!r:.200}")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(
                f"Expected: a list of str. Received in the list: {text!r:.200}"
            )
    return texts, False


def _columns(rows, function):
    """Strings for each argument of a signature, of rows of one or of pairs."""
    width = len(function.input_signature)
    rows = [row if isinstance(row, (tuple, list)) else (row, "") for row in rows]
    for row in rows:
        if len(row) != 2 or not all(isinstance(text, str) for text in row):
            raise TypeError(
                f"Expected: a str, or a pair of str. Received: {row!r:.200}"
            )
        if width == 1 and row[1]:
            raise UserError(f"The task reads one text. Received a pair: {row!r:.200}")
    return [tf.constant(column) for column in zip(*rows, strict=True)][:width]


def _classes(found):
    """`Class`es of what a signature returns, as arrays."""
    labels = found["class_ids"].tolist()
    if "outputs" in found:
        labels = [name.decode() for name in found["outputs"]]
    probabilities = found["probabilities"]
    return [
        Class(label, float(row.max()), row)
        for label, row in zip(labels, probabilities, strict=True)
    ]


def _image_bytes(image):
    """A path, an array or a PIL image as bytes of a PNG or of the file."""
    if isinstance(image, str) or hasattr(image, "__fspath__"):
        with open(image, "rb") as file:
            return file.read()
    array = np.asarray(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != 3:
        raise TypeError(
            "Expected: a path, a PIL image in RGB, or an array uint8 [height, width, "
            f"3]. Received: {type(image).__name__}, {array.dtype} {array.shape}"
        )
    return tf.io.encode_png(array).numpy()


def _ones(spec):
    return {name: np.ones(x.shape, x.dtype) for name, x in spec.items()}


def _on_tensorflow():
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            "Encoders answer on TensorFlow. Unset KERAS_BACKEND: the checkpoint is the "
            "same."
        )


def _check_choice(name, value, choices):
    if value not in choices:
        raise UserError(f"{name} is one of {choices}. Received: {name}={value!r}")


class _Stopped(Exception):
    """Nobody reads the stream any more."""


class _Telling:
    """A model that tells each token it is given, one step after the other."""

    def __init__(self, model, step, tell):
        self._model, self._step, self._tell = model, step, tell

    def __getattr__(self, name):
        return getattr(self._model, name)

    def decode_step(self, tokens, cache, context, state):
        if len(tokens) > 1:
            raise UserError("stream() writes one answer. Leave beams and samples out.")
        self._tell(int(tokens[0]))
        return self._step(tokens, cache, context, state)


def _tokens_as_they_come(decode):
    """Runs `decode(tell)` beside, and yields what it tells, and at last its result."""
    told, stopped = queue.SimpleQueue(), threading.Event()

    def tell(token):
        if stopped.is_set():
            raise _Stopped
        told.put(token)

    def run():
        try:
            told.put(decode(tell))
        except _Stopped:
            pass
        except Exception as error:
            told.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        while True:
            new = told.get()
            if isinstance(new, Exception):
                raise new
            yield new
            if not isinstance(new, int):
                return
    finally:
        stopped.set()
