"""Methods of a loaded run for texts: answers, streams, likelihoods."""

import itertools
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from remixer_tf.arguments import checked
from remixer_tf.decoding import check_writes, sample
from remixer_tf.decoding.row_random import seed_words
from remixer_tf.errors import UserError, check_flags, check_integers, check_unicode
from remixer_tf.layers.base import reads_at_once
from remixer_tf.loaded import searches
from remixer_tf.loaded.inputs import LongTexts, listed
from remixer_tf.loaded.kept import MOST_KEPT, Options, kept
from remixer_tf.serving.text_scorer import TextScorer, text_scorer
from remixer_tf.serving.text_to_text import AHEAD, TextToText, text_to_text
from remixer_tf.serving.token_graph import searchable
from remixer_tf.startup import check_backend

Texts = str | Sequence[str]


class TextMethods:
    """Methods of a `LoadedRun` whose model writes text."""

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
        model, inputs = self.answerer(max_length, **search)
        length = model.input_length
        long = LongTexts(on_long, f"texts are longer than {length} tokens")
        answers, rest = [], iter(texts)
        while batch := list(itertools.islice(rest, size * AHEAD)):
            found = model.answer_all(batch, size, inputs)
            long.count(batch, found["trimmed"])
            several = "all_outputs" in found
            names = ("all_outputs", "all_scores") if several else ("outputs", "scores")
            rows, values = (found[name] for name in names)
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
        found = self.pieces(*self.answerer(max_length, **search), text)
        return (piece for piece, _ in found if piece)

    def pieces(
        self, answerer: TextToText, inputs: dict[str, Any], text: str
    ) -> Iterator[tuple[str, list[int]]]:
        """Answers a text, piece by piece, as `stream` does.

        Args:
            answerer, inputs: of `answerer`.
            text: str.

        Yields:
            str, the next piece, perhaps empty, and the ids of the answer until now.

        Examples:
            >>> pieces = run.pieces(*run.answerer(), "the cat slept")
            >>> text = "".join(piece for piece, _ in pieces)
        """
        tokens, _ = answerer.read(tf.constant([text]))
        batch = searchable(tokens, inputs)
        prompt = np.count_nonzero(tokens) if answerer.codec.one_row else 0
        steps = self._decoding_step(), self._prefill(tokens.shape[1])

        def decode(tell):
            model = searches.TellingModel(self.model, *steps, prompt, tell)
            length = answerer.tokens.max_length
            return answerer.tokens.decode_fn(model, batch, length).tokens.numpy()[0]

        ids, pieces = [], searches.Pieces(answerer)
        for new in searches.tokens_as_they_come(decode):
            ended = not isinstance(new, int)
            ids = new if ended else [*ids, new]
            yield pieces.next(ids, ended), [*map(int, ids)]

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
        scorer = self.scorer()
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
        scorer = self.scorer().keeping_ends()
        if not scorer.codec.one_row:
            raise UserError(
                "perplexity() is for language models, which read one text. Received: "
                f"{type(self.model).__name__}. score() takes inputs and targets."
            )
        stride = scorer.codec.row_length if stride is None else stride
        pairs = scorer.windows(text.encode(), stride)
        sums, counts, *_ = zip(*scorer.score(pairs, 64), strict=True)
        return float(np.exp(-sum(sums) / max(sum(counts), 1)))

    @checked  # It hands on Python's numbers for NumPy's.
    def answerer(
        self,
        max_length: int | None = None,
        skip_special_tokens: bool | None = None,
        **search: Any,
    ) -> tuple[TextToText, dict[str, Any]]:
        """Returns what `generate` asks with these options, see there.

        Returns:
            the `TextToText` of the search, and the options that are inputs of its
            graph, a dictionary of NumPy numbers.

        Raises:
            TypeError, ValueError: as `generate`.

        Examples:
            >>> answerer, inputs = run.answerer(temperature=0.5, seed=3)
            >>> sorted(inputs)
            ['seeds', 'temperature']
        """
        check_writes(self.model)
        searches.check_names(search)
        given = {}
        if skip_special_tokens is not None:
            check_flags(skip_special_tokens=skip_special_tokens)
            given["skip_special_tokens"] = skip_special_tokens
        if max_length is not None:
            searches.check_most("max_length", max_length, searches.LONGEST_ANSWER)
            given["max_length"] = self._room(max_length)
        if "beams" in search:
            searches.check_most("beams", search["beams"], self.model.vocab_size)
        if "num_samples" in search:
            most = searches.LONGEST_ANSWER
            searches.check_most("num_samples", search["num_samples"], most)
        if search.get("allowed") is not None:
            codec = self.run.codec(self.model)
            search["allowed"] = searches.allowed_ids(search["allowed"], codec)
        same, inputs = searches.as_inputs(search, self.model.vocab_size)
        answerer, own, wants_seed = self._text_to_text(Options(given), Options(same))
        longest = max_length or answerer.tokens.max_length
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

    @kept
    def _text_to_text(self, given, search):
        """A `TextToText`, the run's arguments of its search, and if it lacks a seed."""
        given, configuration = dict(given), self.configuration.apart()
        own = searches.own_arguments(configuration)
        found = searches.configured_search(configuration, search)
        wants_seed = searches.draws(search, found) and not (
            "seed" in own or configuration.is_set(sample, "seed")
        )
        if found:
            given["decode_fn"] = found
        # XLA keeps each program until the process ends, also those of graphs that
        # `kept` has given up.
        self._searches += 1
        late = self._searches > MOST_KEPT
        if late and configuration.value(text_to_text, "jit_compile") is None:
            given["jit_compile"] = False
        answerer, _ = configuration.call(
            text_to_text, self.run, self.model_dir, **given
        )
        answerer.options = search
        return answerer, own, wants_seed

    @kept
    def _decoding_step(self):
        return tf.function(self.model.decode_step, autograph=False)

    @kept
    def _prefill(self, width):
        """The compiled `prefill` of prompts of a width; None if steps read them."""
        if not reads_at_once(self.model):
            return None
        return tf.function(self.model.prefill, autograph=False)

    @kept
    def scorer(self) -> TextScorer:
        """Returns the `TextScorer` of the run, as `score` uses it.

        Raises:
            ValueError: the model gives texts no likelihood.

        Examples:
            >>> scorer = run.scorer()
            >>> pair = scorer.encode(b"the cat slept", b"sleep")
            >>> [(total, tokens, *_)] = scorer.score([pair], 1)
            >>> total < 0 and tokens
            6
        """
        return self.configuration.apart().call(text_scorer, self.run, self.model_dir)[0]
