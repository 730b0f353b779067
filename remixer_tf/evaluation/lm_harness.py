"""A run's model as lm-evaluation-harness calls it."""

import collections
import operator
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from remixer_tf.data.codec import pad, ragged
from remixer_tf.decoding import Sampling, greedy_decode, sample
from remixer_tf.errors import MissingLibraryError, UserError
from remixer_tf.layers.checks import check_integers
from remixer_tf.serving.text_scorer import quarters

try:
    from lm_eval import utils
    from lm_eval.api.model import LM
    from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
except ModuleNotFoundError as error:
    raise MissingLibraryError(
        f"lm-evaluation-harness is not installed ({error}). Install it with: "
        "pip install 'remixer_tf[lm_eval]'"
    ) from None

_NO_CHAT = (
    "Models of remixer_tf have no chat template. Run the task without "
    "apply_chat_template, system prompts and turns."
)


class HarnessModel(LM):
    """A model of a run, to be evaluated by lm-evaluation-harness.

    An encoder-decoder reads contexts, as its task's inputs, and writes continuations,
    as targets without EOS; so does a language model whose task has inputs. A language
    model of running text reads both as one text.

    Contexts that are too long lose their beginning, as the harness has it and training
    does not (`Codec`'s `trim="start"`), and a warning counts them. What the model
    cannot do as asked is an error.

    Args:
        scorer: a `TextScorer`, which has the model, its vocabularies and its lengths.
        batch_size: int, the requests answered together. It changes the speed, not the
            results.

    Raises:
        ValueError: `batch_size` is not positive.

    Source: Gao et al., "A framework for few-shot language model evaluation", version
        0.4; for encoder-decoders, issue 1017 of EleutherAI/lm-evaluation-harness.
    """

    def __init__(self, scorer, batch_size=64):
        super().__init__()
        check_integers(batch_size=batch_size)
        self._scorer = scorer.keeping_ends()
        self._codec = self._scorer.codec
        self._batch_size = batch_size

    def loglikelihood(self, requests, disable_tqdm=False):
        """Scores continuations of contexts, the harness's `Instance`s of two str.

        Returns:
            list of (float, bool), the log-likelihood, and whether greedy decoding would
            write the continuation.

        Raises:
            ValueError: a continuation is longer than the model reads.
        """
        results = [None] * len(requests)
        pairs = self._cut([self._encode_pair(*request.args) for request in requests])
        for i, (total, greedy) in self._score(pairs):
            results[i] = total, greedy
            self.cache_hook.add_partial("loglikelihood", requests[i].args, results[i])
        return results

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """Scores whole texts, of any length: each token once. Returns a list of float.

        A language model reads in one go what it can, and later parts with what is
        before them in view, as the harness cuts them. An encoder-decoder writes parts
        of the length of its targets, each after empty inputs (EOS).
        """
        windows = [self._windows(*request.args) for request in requests]
        owners = [i for i, pairs in enumerate(windows) for _ in pairs]
        results = [0.0] * len(requests)
        for pair, (total, _) in self._score(sum(windows, [])):
            results[owners[pair]] += total
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, result)
        return results

    def generate_until(self, requests, disable_tqdm=False):
        """Goes on from contexts, greedily, or with samples where a request says so.

        A request that is repeated draws another sample each time. They are the same
        each time that a task is run.

        Args:
            requests: list of the harness's `Instance`s of (context, dictionary), of
                which `until`, `max_gen_toks`, `do_sample`, `temperature`, `top_k` and
                `top_p` are honoured. Without `max_gen_toks` answers are as long as the
                task's targets, or half of what a model of running text reads.

        Returns:
            list of str, up to the first of the strings of `until`.

        Raises:
            ValueError: there are other arguments, or no room for so many tokens.
        """
        groups = collections.defaultdict(lambda: collections.defaultdict(list))
        for i, (context, arguments) in enumerate(request.args for request in requests):
            groups[self._search(arguments)][context].append(i)
        results = [None] * len(requests)
        for search, places in groups.items():
            for context, texts in self._generate(search, places):
                for i, text in zip(places[context], texts, strict=True):
                    arguments = requests[i].args
                    until = normalize_gen_kwargs(arguments[1])["until"]
                    results[i] = postprocess_generated_text(text, until, None)
                    self.cache_hook.add_partial("generate_until", arguments, results[i])
        return results

    @property
    def tokenizer_name(self):
        """There is no chat template: raises a ValueError."""
        raise UserError(_NO_CHAT)

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        """There is no chat template: raises a ValueError."""
        raise UserError(_NO_CHAT)

    def chat_template(self, chat_template=False):
        """Returns "", there is none; raises a ValueError where one is asked for."""
        if chat_template:
            raise UserError(_NO_CHAT)
        return ""

    def _encode_context(self, context):
        """The ids of a context as the model was trained to read it."""
        ids = self._codec.ids("inputs", context)
        return ids if self._codec.running_text else ids or self._empty_inputs()

    def _empty_inputs(self):
        """What stands for no context: an encoder needs a token to attend to."""
        if self._codec.one_row:
            return []
        return [self._codec.vocabulary("inputs").eos_id]

    def _encode_pair(self, context, continuation):
        """A context and a continuation as ids; spaces between go to the latter."""
        read = context.rstrip()
        continuation = context[len(read) :] + continuation
        context_ids = self._encode_context(read)
        if not self._codec.running_text:
            return context_ids, self._codec.ids("targets", continuation, eos=False)
        whole = self._codec.ids("targets", read + continuation)
        return context_ids, whole[len(context_ids) :]

    def _cut(self, pairs):
        """Takes from contexts what does not fit; a continuation must."""
        lengths, one_row = dict(self._codec.lengths), self._codec.one_row
        most = self._codec.row_length if one_row else lengths["targets"]
        longest = max((len(targets) for _, targets in pairs), default=0)
        if longest > most:
            raise UserError(
                f"A continuation has {longest} tokens, and the model is set to read "
                f"{most} at most: Run.feature_lengths = {lengths}. Raise them "
                "if the model can read more."
            )
        rooms = [
            self._codec.row_length - len(targets) if one_row else lengths["inputs"]
            for _, targets in pairs
        ]
        contexts = _keep_ends([context for context, _ in pairs], rooms)
        return list(zip(contexts, [targets for _, targets in pairs], strict=True))

    def _windows(self, text):
        """A text in parts that are scored one by one, a list of (inputs, targets)."""
        ids = self._codec.ids("targets", text, eos=False)
        if not self._codec.one_row:
            length = self._codec.lengths["targets"]
            empty = self._encode_context("")
            starts = range(0, len(ids), length)
            return [(empty, ids[start : start + length]) for start in starts]
        windows = utils.get_rolling_token_windows(
            ids, prefix_token=0, max_seq_len=self._codec.row_length, context_len=2
        )
        # Every row starts with a token of the model's own, in place of the first.
        return [(a[1:], b) for a, b in map(utils.make_disjoint_window, windows)]

    def _score(self, pairs):
        """Yields (index, (sum, greedy)) of each pair, the longest first."""
        order = sorted(range(len(pairs)), key=lambda i: -sum(map(len, pairs[i])))
        scores = self._scorer.score([pairs[i] for i in order], self._batch_size)
        for i, (total, _, greedy, _) in zip(order, scores, strict=True):
            yield i, (total, greedy)

    def _search(self, arguments):
        """What a request's arguments ask for, as a `_Search`."""
        lengths, one_row = self._codec.lengths, self._codec.one_row
        longest = lengths["targets"] // (2 if self._codec.running_text else 1)
        given = normalize_gen_kwargs(arguments, default_max_gen_toks=longest)
        known = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}
        if unknown := sorted(given.keys() - known):
            raise UserError(
                f"generate_until knows {', '.join(sorted(known))}. Received: "
                f"{', '.join(f'{name}={given[name]!r}' for name in unknown)}"
            )
        max_length = given["max_gen_toks"]
        check_integers(max_gen_toks=max_length)
        if one_row and max_length >= self._codec.row_length:
            raise UserError(
                "A language model reads prompt and answer in one row of "
                f"{self._codec.row_length} tokens: max_gen_toks must be less. "
                f"Received: {max_length}. Set it in the task's generation_kwargs, or "
                "in gen_kwargs."
            )
        if not given["do_sample"]:
            return _Search(max_length)
        names = ("temperature", "top_k", "top_p")
        options = {name: given[name] for name in names if name in given}
        return _Search(max_length, Sampling(**options))

    def _generate(self, search, places):
        """Yields (context, texts) of each key of a dictionary, as many as its values.

        The longest contexts come first.
        """
        scorer, codec = self._scorer, self._codec
        room = codec.row_length - search.max_length
        room = room if codec.one_row else codec.lengths["inputs"]
        rows = [self._encode_context(context) for context in places]
        rows = zip(places, _keep_ends(rows, [room] * len(rows)), strict=True)
        rows = sorted(rows, key=lambda row: -len(row[1]))
        number = max(map(len, places.values())) if search.draws else 1
        eos_id = codec.vocabulary("targets").eos_id
        decode = tf.function(
            search.decoder(scorer.model, eos_id, number), autograph=False
        )
        for start in range(0, len(rows), self._batch_size):
            some = rows[start : start + self._batch_size]
            length = quarters(len(some[0][1]), room) if codec.one_row else room
            fill = [some[-1]] * (self._batch_size - len(some))
            tokens = decode(pad(ragged([row for _, row in some + fill]), length))
            texts = codec.decode(tf.reshape(tokens, [-1, search.max_length]))
            texts = tf.reshape(texts, [-1, number]).numpy()
            for (context, _), answers in zip(some, texts[: len(some)], strict=True):
                answers = [text.decode("utf-8", "replace") for text in answers]
                count = len(places[context])
                yield context, answers[:count] if number > 1 else answers * count


class _Search(NamedTuple):
    """How to go on from a context: greedily, unless it draws."""

    max_length: int
    sampling: Sampling | None = None

    @property
    def draws(self):
        return self.sampling is not None and self.sampling.temperature > 0

    def decoder(self, model, eos_id, number):
        """Returns a function from tokens `[batch, length]` to `[batch * number, n]`."""

        def decode(tokens):
            batch = {"encoder_input_tokens": tokens}
            if not self.draws:
                return greedy_decode(model, batch, self.max_length, eos_id).tokens
            *_, answers = decoded = sample(
                model, batch, **self._asdict(), num_samples=number, eos_id=eos_id
            )
            return answers.tokens if answers else decoded.tokens

        return decode


def _keep_ends(rows, lengths):
    """Cuts the beginnings of rows that are longer, and says of how many."""
    cut = [row[max(len(row) - n, 0) :] for row, n in zip(rows, lengths, strict=True)]
    over = sum(map(operator.ne, rows, cut))
    if over:
        logging.warning(
            "%d of %d contexts are longer than the model reads: they lose their start.",
            over,
            len(rows),
        )
    return cut
