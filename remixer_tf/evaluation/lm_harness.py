"""A run's model as lm-evaluation-harness calls it."""

import collections
import operator

import tensorflow as tf
from absl import logging

from remixer_tf.data.codec import pad, ragged
from remixer_tf.decoding import Sampling, greedy_decode, sample
from remixer_tf.errors import UserError, check_integers, library
from remixer_tf.serving.text_scorer import quarters

_HARNESS = "lm-evaluation-harness", "lm_eval"
LM = library("lm_eval.api.model", *_HARNESS).LM
utils = library("lm_eval.models.utils", *_HARNESS)

_NO_CHAT = (
    "Models of remixer_tf have no chat template. Run the task without "
    "apply_chat_template, system prompts and turns."
)


class HarnessModel(LM):
    """A model of a run, to be evaluated by lm-evaluation-harness.

    Contexts are inputs of the task, and continuations are targets without EOS. A
    language model of running text reads both as one text.

    Contexts that are too long lose their beginning, as in the harness but not in
    training (`Codec`'s `trim="start"`). A warning counts them. A request that the model
    cannot honour is an error.

    Args:
        scorer: a `TextScorer` of the model.
        batch_size: int, the requests answered together. It changes only the speed.

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
        """Scores continuations of contexts, `Instance`s of two str.

        Returns a list of (float, bool), the log-likelihood, and whether greedy decoding
        gives the continuation. Raises a ValueError if one is longer than the model
        reads.
        """
        results = [None] * len(requests)
        pairs = self._cut([self._encode_pair(*request.args) for request in requests])
        for i, (total, greedy) in self._score(pairs):
            results[i] = total, greedy
            self.cache_hook.add_partial("loglikelihood", requests[i].args, results[i])
        return results

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """Scores each token of texts of any length once. Returns a list of float.

        A language model reads the harness's windows, which begin with scored tokens. An
        encoder-decoder scores parts of the length of its targets, each after empty
        inputs (EOS).
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
        """Continues contexts greedily, or with samples if a request asks for them.

        A repeated request draws different samples. A task draws the same ones in each
        of its runs. A request has a context and a dictionary of `until`,
        `max_gen_toks`, `do_sample`, `temperature`, `top_k` and `top_p`. The default of
        `max_gen_toks` is the length of the targets, or half of the row of a model of
        running text. Returns a list of str, up to the first of the strings of `until`.
        Raises a ValueError for other arguments, or if there is no room for so many
        tokens.
        """
        groups = collections.defaultdict(lambda: collections.defaultdict(list))
        for i, (context, arguments) in enumerate(request.args for request in requests):
            groups[self._search(arguments)][context].append(i)
        results = [None] * len(requests)
        for (max_length, sampling), places in groups.items():
            for context, texts in self._generate(places, max_length, sampling):
                for i, text in zip(places[context], texts, strict=True):
                    arguments = requests[i].args
                    until = utils.normalize_gen_kwargs(arguments[1])["until"]
                    results[i] = utils.postprocess_generated_text(text, until, None)
                    self.cache_hook.add_partial("generate_until", arguments, results[i])
        return results

    @property
    def tokenizer_name(self):
        raise UserError(_NO_CHAT)

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        raise UserError(_NO_CHAT)

    def chat_template(self, chat_template=False):
        if chat_template:
            raise UserError(_NO_CHAT)
        return ""

    def _encode_context(self, context):
        """Returns the ids of a context; an encoder needs at least one to attend to."""
        ids = self._codec.ids("inputs", context)
        if ids or self._codec.one_row:
            return ids
        return [self._codec.vocabulary("inputs").eos_id]

    def _encode_pair(self, context, continuation):
        """Returns the ids of both; spaces between them belong to the continuation."""
        read = context.rstrip()
        continuation = context[len(read) :] + continuation
        context_ids = self._encode_context(read)
        if not self._codec.running_text:
            return context_ids, self._codec.ids("targets", continuation, eos=False)
        whole = self._codec.ids("targets", read + continuation)
        return context_ids, whole[len(context_ids) :]

    def _cut(self, pairs):
        """Cuts the beginning of contexts; continuations must fit."""
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
        """Returns the parts of a text, a list of (inputs, targets)."""
        if self._codec.one_row:
            # The windows of the harness: each begins with the last scored token.
            stride = self._codec.row_length - 1
            return self._scorer.windows(text, stride) if text else []
        ids = self._codec.ids("targets", text, eos=False)
        length, empty = self._codec.lengths["targets"], self._encode_context("")
        starts = range(0, len(ids), length)
        return [(empty, ids[start : start + length]) for start in starts]

    def _score(self, pairs):
        """Yields (index, (sum, greedy)) of each pair, the longest first."""
        order = sorted(range(len(pairs)), key=lambda i: -sum(map(len, pairs[i])))
        scores = self._scorer.score([pairs[i] for i in order], self._batch_size)
        for i, (total, _, greedy, _) in zip(order, scores, strict=True):
            yield i, (total, greedy)

    def _search(self, arguments):
        """Returns a request's tokens at most, and `Sampling`, None for greedy."""
        lengths, one_row = self._codec.lengths, self._codec.one_row
        longest = lengths["targets"] // (2 if self._codec.running_text else 1)
        given = utils.normalize_gen_kwargs(arguments, default_max_gen_toks=longest)
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
            return max_length, None
        names = ("temperature", "top_k", "top_p")
        values = {n: given[n] for n in names if given.get(n) is not None}
        sampling = Sampling(**values)
        return max_length, sampling if sampling.temperature > 0 else None

    def _generate(self, places, max_length, sampling):
        """Yields (context, one text for each of its places), longest contexts first."""
        model, codec = self._scorer.model, self._codec
        room = codec.row_length - max_length
        room = room if codec.one_row else codec.lengths["inputs"]
        rows = [self._encode_context(context) for context in places]
        rows = zip(places, _keep_ends(rows, [room] * len(rows)), strict=True)
        rows = sorted(rows, key=lambda row: -len(row[1]))
        number = max(map(len, places.values())) if sampling else 1
        eos_id = codec.vocabulary("targets").eos_id

        @tf.function(autograph=False)
        def decode(tokens):
            batch = {"encoder_input_tokens": tokens}
            if not sampling:
                return greedy_decode(model, batch, max_length, eos_id).tokens
            options = {"sampling": sampling, "num_samples": number, "eos_id": eos_id}
            decoded = sample(model, batch, max_length, **options)
            return (decoded.answers or decoded).tokens

        for start in range(0, len(rows), self._batch_size):
            some = rows[start : start + self._batch_size]
            length = quarters(len(some[0][1]), room) if codec.one_row else room
            fill = [some[-1]] * (self._batch_size - len(some))
            tokens = decode(pad(ragged([row for _, row in some + fill]), length))
            texts = codec.decode(tf.reshape(tokens, [-1, max_length]))
            texts = tf.reshape(texts, [-1, number]).numpy()
            for (context, _), answers in zip(some, texts[: len(some)], strict=True):
                answers = [text.decode("utf-8", "replace") for text in answers]
                count = len(places[context])
                yield context, answers[:count] if number > 1 else answers * count


def _keep_ends(rows, lengths):
    """Cuts the beginnings of rows that are too long, and logs how many."""
    cut = [row[max(len(row) - n, 0) :] for row, n in zip(rows, lengths, strict=True)]
    over = sum(map(operator.ne, rows, cut))
    if over:
        logging.warning(
            "%d of %d contexts are longer than the model reads: they lose their start.",
            over,
            len(rows),
        )
    return cut
