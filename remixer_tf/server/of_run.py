"""A loaded run as a served model."""

import asyncio
import collections
import functools
import threading
import time
import warnings

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.data.classification import ClassNames
from remixer_tf.data.codec import ragged
from remixer_tf.data.eval_batches import xla_of_answers
from remixer_tf.decoding import HuggingFaceRules, Sampling, T5Rules, check_scores
from remixer_tf.decoding.row_random import seed_words
from remixer_tf.engines.tensorflow.strategy import uses_xla
from remixer_tf.errors import UserError
from remixer_tf.evaluation.results import metrics_at
from remixer_tf.loaded import searches
from remixer_tf.loaded.export import LoadedExport
from remixer_tf.loaded.kept import Options
from remixer_tf.models import ImageClassifier, SpanHead
from remixer_tf.server.batching import Thread
from remixer_tf.server.calls import OPTIONS
from remixer_tf.server.limits import invalid, try_later
from remixer_tf.server.models import export_version
from remixer_tf.server.observed import observed, pair_batch
from remixer_tf.server.served import GENERATE, SCORE, Served, draw_seed
from remixer_tf.server.signatures import IMAGE, Signature, Tensor
from remixer_tf.server.writing import Writer, answers_of
from remixer_tf.serving.continuous import ContinuousSearch
from remixer_tf.serving.image_to_class import image_to_class
from remixer_tf.serving.text_encoder import text_encoder
from remixer_tf.serving.text_scorer import quarters
from remixer_tf.serving.text_to_text import text_to_text
from remixer_tf.startup import check_backend

STRING = Tensor("string")
DRAWN = ("temperature", "top_p", "seed")  # of each row, in one graph
ANSWERS = {"outputs": STRING, "scores": Tensor("float32"), "trimmed": Tensor("bool")}
_LONG_SEED = 2**63 - 1
_MOST_ASKED_FOR = 8  # requests that wait for a search to be made


class _Search:
    """A search of a run: one graph for each shape of a batch.

    Attributes:
        defaults: dictionary of NumPy's numbers, the inputs of its graph.
        lengths: list of ints, what questions are padded to.
        writer: the `Writer`, if rows come and go; else None.
        made: an `asyncio.Event`: there is the writer, or there will be none.
    """

    def __init__(self, answerer, defaults, lengths=1):
        self.answerer, self.defaults, self.writer = answerer, defaults, None
        self.made = asyncio.Event()
        self.made.set()
        self.lengths = [answerer.input_length]
        self.widths = getattr(answerer, "lengths", None)
        if self.widths:
            # Each is traced, and perhaps compiled: seconds.
            self.lengths = answerer.lengths[::-2][:lengths][::-1]
            answerer.lengths = self.lengths

    def come_and_go(self, run, sizes, thread):
        """Makes the `writer`, where search and model of a `LoadedRun` have one."""
        on_jax = keras.backend.backend() == "jax"
        if on_jax or run.run.weights()[0].num_replicas > 1:
            return
        tokens = self.answerer.tokens
        try:
            search = ContinuousSearch(run.model, tokens, self.widths, self.defaults)
            search.trace(search.shapes[0])
        except UserError:  # Rows keep in step.
            return
        self.writer = Writer(search, self.answerer, self.defaults, sizes, thread)

    def decode(self, tokens, rows):
        """Answers ids `[batch, ..]`; `rows` are dictionaries of inputs."""
        settings = {
            name: np.stack([row.get(name, default) for row in rows])
            for name, default in self.defaults.items()
        }
        return self.answerer.decode_tokens(tokens, settings or None)

    def shape(self, tokens):
        """Returns the shape for which a batch of ids is compiled."""
        length = getattr(self.answerer, "padded_length", np.shape)(tokens)
        return self, len(tokens), length


class ServedRun(Served):
    """A `LoadedRun` as a served model. Called in its thread.

    Args:
        run: the `LoadedRun`.
        name, limits, thread: see `Served`.
        sizes: tuple of ints, the numbers of texts that are computed together.
    """

    def __init__(self, run, name, limits, thread, sizes):
        super().__init__(name, run.model_dir, limits, thread)
        self.run, self.sizes = run, sizes
        # A graph that XLA does not compile serves any number of rows.
        whole = keras.backend.backend() != "tensorflow" or uses_xla(None)
        self._of_any_rows = not whole
        self._any_sizes = sizes if whole else tuple(range(1, sizes[-1] + 1))
        # A search whose rows keep in step is compiled for longer.
        self._few_sizes = sizes[:1] + sizes[2::2] if len(sizes) > 3 else sizes
        self._others = collections.OrderedDict()
        self._streams = self._asked_for = self._early = 0
        self._closed = False
        self._about = {}
        if isinstance(run, LoadedExport):
            self.kind, self.streams = "export", False
            self.version = export_version(run.model_dir)
            self._add_answers()
            return
        engine, step = run.run.weights()
        engine.answer_programs = 1
        model = run.model
        self.version, self.kind = str(step), type(model).__name__
        self._about = _facts(run)
        if hasattr(model, "decode_step"):
            reason = self._add_answers()
            self._add_scores()
            if not self.signatures:
                raise UserError(reason)
        elif isinstance(model, ImageClassifier):
            self._add_graph("classify", "classify_bytes", (1,))
        else:
            self._add_encoder(model)
        if self.default not in self.signatures:
            self.signatures[self.default] = self.signatures[next(iter(self.signatures))]

    # Making the signatures.

    def _add_answers(self):
        """Signatures of a model that writes text; returns why it has none."""
        run = self.run
        answerer, inputs = run.answerer()
        self._draws, numbers = None, {}
        if hasattr(answerer, "tokens"):
            if reason := answerer.tokens.cannot_decode():
                return reason
            self.longest = answerer.tokens.max_length
            longest = {"max_length": np.int32(self.longest)}
            own = searches.own_arguments(run.configuration.apart())
            seed = seed_words(own.get("seed", 0))
            inputs = {name: seed for name in inputs} | longest
            sampling = own.get("sampling") or Sampling()
            settings = {"temperature": np.float32(sampling.temperature), "seeds": seed}
            # XLA would compile each search for minutes.
            run.run.weights()[0].answer_programs = 0
            draws, _ = run.answerer(temperature=1.0, seed=0)
            top_p, _ = run.answerer(temperature=1.0, top_p=0.5, seed=0)
            self._draws = _Search(draws, settings | longest)
            settings["top_p"] = np.float32(sampling.top_p)
            self._top_p = _Search(top_p, settings | longest)
            numbers = {
                "max_length": Tensor("int32", (), None, 1, self.longest),
                "temperature": Tensor("float32", (), None, 0.0, 1e30),
                "top_p": Tensor("float32", (), None, 1e-6, 1.0),
                "seed": Tensor("int64", (), None, 0, _LONG_SEED),
            }
        self._own = _Search(answerer, inputs, lengths=2)
        if hasattr(answerer, "tokens"):
            self._own.come_and_go(run, self.sizes, self.thread)
        self.eos_id = answerer.codec.vocabulary("targets").eos_id
        several = len(self._warm_answer(self._own, 1).get("all_scores", ()))
        outputs = dict(ANSWERS)
        if several:
            outputs["all_outputs"] = Tensor("string", (several,))
            outputs["all_scores"] = Tensor("float32", (several,))
        asked = {"inputs": STRING}
        self.signatures[self.default] = Signature(
            asked, outputs, self._generate, self._few_sizes, self._search_of
        )
        self.signatures[GENERATE] = Signature(
            asked | numbers, outputs, self._generate, self._few_sizes, self._search_of
        )
        return ""

    def _add_scores(self):
        try:
            self._scorer = self.run.scorer()
            check_scores(self.run.model)
        except ValueError:  # The model gives texts no likelihood.
            return
        self._observe_by(lambda row: pair_batch(self._scorer, *self._pair(row)))
        self.continues = self._scorer.codec.one_row
        self.signatures[SCORE] = Signature(
            {"inputs": STRING, "targets": STRING},
            {
                "scores": Tensor("float32"),
                "num_tokens": Tensor("int32"),
                "greedy": Tensor("bool"),
                "trimmed": Tensor("bool"),
            },
            self._score,
            self._any_sizes,
        )

    def _observe_by(self, batch_of):
        """Adds what `/observe` asks; `batch_of` makes the model's batch of a row."""
        run = self.run
        codec = run.run.codec(run.model)

        def compute(rows):
            (row,) = rows
            batch, trimmed = batch_of(row)
            found = observed(run.model, codec, batch, row["layer"])
            return [found | {"trimmed": trimmed}]

        inputs = {"inputs": STRING, "targets": STRING, "layer": STRING}
        self.observes = Signature(inputs, {}, compute, (1,))

    def _add_encoder(self, model):
        if isinstance(model.head, SpanHead):
            self.signatures["answer"] = Signature(
                {"question": STRING, "text": STRING},
                {"outputs": STRING},
                self._span,
                self.sizes,
            )
        encoder, _ = self.run.configuration.apart().call(
            text_encoder, self.run.run, self.run.model_dir
        )

        def batch_of(row):
            texts = [row["inputs"]] + ([row["targets"]] if row["targets"] else [])
            batch, trimmed = encoder.batch(*map(tf.constant, [[x] for x in texts]))
            return batch, bool(trimmed[0])

        self._observe_by(batch_of)
        if model.num_classes:
            self._add_graph("classify", "classify", self._any_sizes)
        self._add_graph("embed", "embed", self._any_sizes)

    def _add_graph(self, name, of_export, sizes):
        """Adds a signature by the graph that an export would have."""
        function = self.run.signature(of_export)
        specs = function.input_signature
        inputs = {spec.name: STRING for spec in specs}
        if "inputs_b" in inputs:
            inputs["inputs_b"] = Tensor("string", (), b"")
        outputs = {
            key: Tensor(
                "string" if x.dtype == tf.string else x.dtype.name, tuple(x.shape[1:])
            )
            for key, x in function.get_concrete_function().structured_outputs.items()
        }

        def compute(rows):
            columns = [tf.constant([row[name] for row in rows]) for name in inputs]
            found = {key: x.numpy() for key, x in function(*columns).items()}
            return [{k: x[i] for k, x in found.items()} for i in range(len(rows))]

        self.signatures[name] = Signature(inputs, outputs, compute, sizes)

    # Computing, in the thread.

    def _search_of(self, row):
        """The `_Search` of a row of `generate`."""
        if "search" in row:
            return row["search"]
        given = {name for name in DRAWN if row.get(name) is not None}
        return self._drawn(row) if given else self._own

    def _drawn(self, options):
        """The search that draws. Only where `top_p` says so it sorts the vocabulary."""
        top_p = options.get("top_p")
        return self._draws if top_p is None or top_p >= 1 else self._top_p

    def _generate(self, rows):
        return self._answers(self._search_of(rows[0]), rows)

    def _answers(self, search, rows):
        """Answers rows of one search, all until the last has ended."""
        answerer = search.answerer
        tokens, trimmed = answerer.tokens_of(tf.constant([r["inputs"] for r in rows]))
        self.compiles(*search.shape(tokens))
        found = search.decode(tokens, [*map(_settings, rows)])
        answers = answers_of(answerer, found, trimmed)
        for answer, ids in zip(answers, tokens, strict=True):
            answer["input_tokens"] = int(np.count_nonzero(ids))
        return answers

    def _made_at_start(self):
        """The searches that no request waits for, a list."""
        return [self._own, *([self._draws, self._top_p] if self._draws else [])]

    def _warm_answer(self, search, size):
        """Answers so many questions with one token each; returns an answer."""
        row = {"inputs": b"A question .", "max_length": np.int32(1)}
        if search.writer:
            return search.writer.answer(row["inputs"], _settings(row))
        return self._answers(search, [row] * size)[0]

    def _score(self, rows):
        scorer = self._scorer
        pairs = [self._pair(row) for row in rows]
        length = None
        if scorer.codec.one_row:
            whole = max(len(a) + len(b) for a, b in pairs)
            row_length = scorer.codec.row_length
            length = quarters(min(whole, row_length), row_length)
        self.compiles(SCORE, self._of_any_rows or len(rows), length)
        found = scorer.score_tokens(pairs, len(rows))
        return [
            one | {"scores": one["score"], "texts": self.token_texts(one["tokens"])}
            for one in found
        ]

    def _pair(self, row):
        """The ids of inputs and targets; `target_ids` of a row follow its targets."""
        if "target_ids" not in row:
            return self._scorer.encode(row["inputs"], row["targets"])
        ids = functools.partial(self._scorer.codec.ids, eos=False)
        inputs = self._scorer.codec.ids("inputs", row["inputs"])
        return inputs, ids("targets", row["targets"]) + row["target_ids"]

    def token_texts(self, ids):
        """Returns the part of the text that each of an answer's ids adds."""
        ids = np.array(ids, np.int32)
        if not len(ids):
            return []
        starts = np.where(np.tri(len(ids), dtype=bool), ids, 0)
        texts = self._scorer.codec.decode(starts).numpy()
        texts = [text.decode("utf-8", "ignore") for text in texts]
        befores = ["", *texts[:-1]]
        return [
            text[len(before) :] if text.startswith(before) else ""
            for before, text in zip(befores, texts, strict=True)
        ]

    def _span(self, rows):
        asked = [
            [row[name].decode("utf-8", "replace") for row in rows]
            for name in ("question", "text")
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # long questions
            found = self.run.answer(*asked)
        return [{"outputs": text.encode()} for text in found]

    def _warm_up(self, say):
        self._say, start = say, time.monotonic()
        if GENERATE in self.signatures:
            searches = self._made_at_start()
            say(
                f"{self.name}: makes {len(searches)} searches for {_joined(self.sizes)}"
                f" texts of {_joined(self._own.lengths)} tokens"
            )
            for search in searches:
                if search is not self._own and self._own.writer:
                    search.made.clear()  # until `_get_faster` has made it
                elif not search.writer:
                    self._warm_search(search)
        if SCORE in self.signatures:
            self._warm_scorer()
        for name, signature in self.signatures.items():
            if name in ("classify", "embed", "answer"):
                self._warm_signature(signature)
        if self.longest and GENERATE in self.signatures and not self._own.writer:
            self._warm_stream()
        shapes = len(self._compiled)
        seconds = time.monotonic() - start
        say(f"{self.name}: warmed up {shapes} shapes in {seconds:.1f} s")

    def _warm_search(self, search):
        for size in self._few_sizes:
            rows = [{"max_length": np.int32(1)}] * size
            for length in search.lengths:
                tokens = np.zeros([size, search.answerer.input_length], np.int32)
                tokens[:, :length] = 2
                self.compiles(*search.shape(tokens))
                search.decode(tokens, rows)
            self._warm_answer(search, size)  # with the tokenizer

    def _warm_scorer(self):
        codec, lengths = self._scorer.codec, [None]
        if codec.one_row:
            quarter = -(-codec.row_length // 4)
            lengths = sorted({min(quarter * i, codec.row_length) for i in range(1, 5)})
        for size in (1,) if self._of_any_rows else self.sizes:
            for length in lengths:
                self.compiles(SCORE, self._of_any_rows or size, length)
                pairs = [([], [2] * (length or 1))] * size
                [*self._scorer.score_tokens(pairs, size)]

    def _warm_signature(self, signature):
        texts = {name: b"A question ." for name in signature.inputs}
        if IMAGE in texts:
            image = tf.io.encode_png(np.zeros([8, 8, 3], np.uint8)).numpy()
            texts = {IMAGE: image}
        for size in {signature.sizes[0], signature.sizes[-1]}:
            signature.compute([texts] * size)

    def _warm_stream(self):
        """Traces the steps of an answer as long as may be."""
        settings = self._own.defaults | {"min_length": np.int32(self.longest)}
        try:
            check_backend("A stream")
            pieces = self.run.pieces(self._own.answerer, settings, "A question .")
            for _ in pieces:
                pass
        except UserError:  # Another engine, or a search of several answers.
            self.streams = False

    # Asking, in the event loop.

    streams = True

    async def questions(self, texts, options):
        self.signature(GENERATE)
        options = dict(options)
        longest = options.pop("max_length", None)
        if longest is not None and self.longest is None:
            raise invalid(f"The model {self.name} takes no max_length: it has its own.")
        if longest is not None and longest > self.longest:
            raise invalid(
                f"max_length is at most {self.longest} here. Received: {longest}. "
                "(text_to_text.max_length of the run sets it.)"
            )
        settings = {}
        if longest is not None:
            settings["max_length"] = np.int32(longest)
        if options.get("min_length", 0) > (longest or self.longest or np.inf):
            raise invalid("min_length is more than max_length.")
        if self._draws and options and options.keys() <= {*DRAWN}:
            search = self._drawn(options)
            for name in options.keys() - {"seed"}:
                settings[name] = np.float32(options[name])
            settings["seeds"] = seed_words(options.get("seed", 0))
            if "seed" not in options:
                settings["seeds"] = seed_words(draw_seed())
        elif options:
            search, more = await self._other_search(options)
            settings |= more
        else:
            search = self._own
            if "seeds" in search.defaults:
                settings["seeds"] = seed_words(draw_seed())
        more = {"search": search, "settings": settings}
        return self.signatures[GENERATE], [{"inputs": text, **more} for text in texts]

    def open(self, observe=lambda rows, seconds, error: 0):
        super().open(observe)
        for search in self._written():
            search.writer.observe = observe
        if self._written():
            self.is_compiling = True
            loop = asyncio.get_running_loop()
            # TensorFlow aborts a process that ends while it compiles. So this is no
            # daemon, even if the loop's own thread is one.
            threading.Thread(target=self._get_faster, args=[loop], daemon=False).start()

    def _get_faster(self, loop):
        """Makes what can wait until questions are answered, in a thread of its own."""
        own, *drawn = self._made_at_start()
        start = time.monotonic()
        try:
            for search in drawn:
                search.come_and_go(self.run, self.sizes, self.thread)
                search.writer.observe = own.writer.observe
                loop.call_soon_threadsafe(search.made.set)
            own.writer.search.trace_others()
            number = self._compile(own.writer.search)
            for search in drawn if not self._closed else ():
                search.writer.search.trace_others()
            seconds = time.monotonic() - start
            made = f"XLA compiled {number} shapes" if number else "made all graphs"
            if not self._closed:
                self._say(f"{self.name}: {made} in {seconds:.1f} s")
        except Exception as error:
            if not loop.is_closed():
                self._say(f"{self.name}: gets no faster ({type(error).__name__})")
                for search in drawn:  # without a writer: in one batch
                    loop.call_soon_threadsafe(search.made.set)
        self.is_compiling = False

    def _compile(self, search):
        """Has XLA compile a search, as for `infer`; returns for how many shapes."""
        wanted = self.run.configuration.value(text_to_text, "jit_compile")
        engine, _ = self.run.run.weights()
        if not engine.takes_xla(xla_of_answers(self.run.model, wanted)):
            return 0
        try:
            for shape in search.shapes[::-1]:
                for size in self.sizes:
                    if not self._closed:
                        search.compile(size, shape)
        except tf.errors.OpError as error:
            text = str(error).partition("\n")[0]
            self._say(f"{self.name}: XLA cannot compile its search ({text:.200})")
        return search.compiled()

    def _written(self):
        """The searches whose rows come and go."""
        if GENERATE not in self.signatures:
            return []
        return [search for search in self._made_at_start() if search.writer]

    def waiting(self):
        written = sum(search.writer.waiting() for search in self._written())
        return super().waiting() + self._early + written

    def close(self):
        self._closed = True
        if any(search.writer.is_writing() for search in self._written()):
            asyncio.get_running_loop().call_later(1, self.close)  # streams
            return
        super().close()

    async def _asked(self, signature, rows):
        if signature.compute != self._generate:
            return await super()._asked(signature, rows)
        searches = [self._search_of(row) for row in rows]
        await self._made(searches)
        if not all(search.writer for search in searches):
            return await super()._asked(signature, rows)
        futures = [
            search.writer.ask(row["inputs"], _settings(row))
            for search, row in zip(searches, rows, strict=True)
        ]
        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()

    async def _made(self, searches):
        """Waits until the searches of rows are made. The rows count as waiting."""
        self._early += len(searches)
        try:
            for search in searches:
                await search.made.wait()
        finally:
            self._early -= len(searches)

    async def _other_search(self, options):
        """`_search_for` in the thread. Raises a `Refusal`."""
        if self._asked_for >= _MOST_ASKED_FOR:
            raise try_later(429, "Other requests wait for searches of their own.", 5)
        self._asked_for += 1
        try:
            async with self.in_time():
                return await self.thread.call(self._search_for, options)
        except Exception as error:
            raise self.refusal(error) from None
        finally:
            self._asked_for -= 1

    def _search_for(self, options):
        """The `_Search` of options that start-up did not compile, and its inputs."""
        options = dict(options)
        if "alpha" in options and "length_penalty" in options:
            raise invalid("alpha and length_penalty are of other rules. Give one.")
        if "alpha" in options:
            options["rules"] = T5Rules(options.pop("alpha"))
        if "length_penalty" in options:
            options["rules"] = HuggingFaceRules(options.pop("length_penalty"))
        skip = options.pop("skip_special_tokens", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of allowed texts that come out otherwise
            answerer, inputs = self.run.answerer(skip_special_tokens=skip, **options)
        key = skip, Options(answerer.options), frozenset(inputs)
        search = self._others.pop(key, None)
        if search is None:
            if not self.limits.max_searches:
                raise invalid(
                    f"This server compiles no search for {', '.join(options)}. It "
                    "takes max_length, temperature, top_p and seed."
                )
            defaults = dict(inputs)
            if self.longest:
                defaults["max_length"] = np.int32(self.longest)
            search = _Search(answerer, defaults)
        self._others[key] = search
        while len(self._others) > max(self.limits.max_searches, 1):
            _, old = self._others.popitem(last=False)
            self._compiled = {x for x in self._compiled if x[0] is not old}
        return search, inputs

    def takes(self, call):
        found = super().takes(call)
        if call != GENERATE or self._draws is None or not self.limits.max_searches:
            return found
        return [*dict.fromkeys([*found, *OPTIONS])]

    async def stream(self, text, options):
        if not {*options} <= {"max_length", *DRAWN}:
            async for piece in super().stream(text, options):
                yield piece
            return
        _, (row,) = await self.questions([text], options)
        self.check_queue(1)
        async with self.in_time():
            await self._made([row["search"]])
        if writer := row["search"].writer:
            pieces = asyncio.Queue()
            answer = writer.ask(text, row["settings"], pieces)
            try:
                while (piece := await self._next(pieces.get())) is not None:
                    yield piece
                await answer
            except Exception as error:
                raise self.refusal(error) from None
            finally:
                answer.cancel()
            return
        if not self.streams:
            async for piece in super().stream(text, options):
                yield piece
            return
        if self._streams >= self.limits.max_streams:
            raise try_later(
                429, f"At most {self.limits.max_streams} answers are streamed at once."
            )
        self._streams += 1
        thread = Thread(f"stream of {self.name}")
        settings = row["search"].defaults | row["settings"]
        pieces = self.run.pieces(
            row["search"].answerer, settings, text.decode("utf-8", "replace")
        )
        try:
            while True:
                try:
                    found = await self._next(thread.call(next, pieces, None))
                except Exception as error:
                    raise self.refusal(error) from None
                if found is None:
                    return
                piece, ids = found
                yield piece, [x for x in ids if x]  # The last ones are filled up.
        finally:
            self._streams -= 1
            thread.stop(pieces.close)

    async def _next(self, piece):
        """Returns what a coroutine returns, within the time of an answer."""
        async with self.in_time():
            return await piece

    async def continued(self, texts, tokens):
        return await self.thread.call(self._continued, texts, tokens)

    def _continued(self, texts, tokens):
        answerer = self._own.answerer
        read = [answerer.codec.ids("targets", text, eos=False) for text in texts]
        rows = [before + after for before, after in zip(read, tokens, strict=True)]
        befores, wholes = (
            [x.decode("utf-8", "replace") for x in answerer.write(ids).numpy()]
            for ids in (ragged(read).to_tensor(), ragged(rows).to_tensor())
        )
        return befores, [
            whole[len(before) :] for before, whole in zip(befores, wholes, strict=True)
        ]

    async def count_tokens(self, texts):
        found, _ = await self.thread.call(
            self._own.answerer.tokens_of, tf.constant(texts)
        )
        return int(np.count_nonzero(found))

    def describe(self):
        return super().describe() | self._about


def _facts(run):
    """Facts about a run, as JSON has them."""
    found = {}
    if run.task is not None:
        found["task"] = run.task.name
        found["lengths"] = dict(run.run.feature_lengths)
        targets = run.task.output_features.get("targets")
        if targets and isinstance(targets.vocabulary, ClassNames):
            found["classes"] = targets.vocabulary.names
    elif classes := run.configuration.value(image_to_class, "classes"):
        found["classes"] = [*classes]
    measured = metrics_at(run.model_dir, run.step) if run.model_dir else {}
    numbers = {k: float(x) for k, x in measured.items() if not isinstance(x, str)}
    return found | {"metrics": {k: x for k, x in numbers.items() if np.isfinite(x)}}


def _joined(numbers):
    return ", ".join(map(str, numbers))


def _settings(row):
    """The inputs of its search's graph that a row gives."""
    if "settings" in row:
        return row["settings"]
    found = {
        name: row[name]
        for name in ("max_length", "temperature", "top_p")
        if row.get(name) is not None
    }
    if row.get("seed") is not None:
        found["seeds"] = seed_words(int(row["seed"]))
    return found
