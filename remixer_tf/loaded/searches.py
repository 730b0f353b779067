"""How a loaded run finds answers: options of Python in place of gin's, and streams."""

import concurrent.futures
import dataclasses
import functools
import queue
import threading
import warnings

import numpy as np

from remixer_tf.data.texts import describe_changed_answers
from remixer_tf.decoding import (
    AnswerLimits,
    HuggingFaceRules,
    Sampling,
    T5Rules,
    beam_search,
    greedy_decode,
    sample,
)
from remixer_tf.decoding.constraints import (
    TableRoom,
    allowed_table,
    check_in_vocabulary,
    check_limits,
    most_children,
)
from remixer_tf.decoding.repetition import check_repetition
from remixer_tf.decoding.row_random import seed_words
from remixer_tf.decoding.row_settings import DTYPES, replaced
from remixer_tf.errors import (
    UserError,
    check_integers,
    check_unicode,
    nearest,
)
from remixer_tf.serving.text_to_text import text_to_text

LONGEST_ANSWER = 2**16  # tokens: a search holds as many for each beam

_BEAMS = {"beams", "n_best", "rules"}
_SAMPLING = {"temperature", "top_k", "top_p"}
_DRAWS = _SAMPLING | {"num_samples", "seed"}
_OF_ALL = {"min_length", "allowed", "no_repeat_ngram_size", "repetition_penalty"}
_SEARCH = _BEAMS | _DRAWS | _OF_ALL
_OF_GENERATE = {"batch_size", "max_length", "on_long", "scores", "skip_special_tokens"}
_OF_TRANSFORMERS = {
    "do_sample": "temperature, top_k or top_p, which draw",
    "early_stopping": "rules=HuggingFaceRules(early_stopping=..)",
    "length_penalty": "rules=HuggingFaceRules(length_penalty=..)",
    "max_new_tokens": "max_length",
    "min_new_tokens": "min_length",
    "num_beams": "beams",
    "num_return_sequences": "n_best of beams, num_samples of draws",
}
_SEARCHES = {f.__name__: f for f in (beam_search, greedy_decode, sample)}
_MOST_ENTRIES = 2**15  # of the table of a row, 0.4 MB
_SHORTEST = 16  # tokens of an answer that a graph has room for, at least


def check_names(options):
    """Raises a TypeError for what is no option of a search."""
    for name in options:
        if name in _OF_TRANSFORMERS:
            raise TypeError(
                f"generate() has no argument {name!r}. Nearest: "
                f"{_OF_TRANSFORMERS[name]}."
            )
        if name not in _SEARCH:
            close = nearest(name, _SEARCH | _OF_GENERATE)
            raise TypeError(f"generate() has no argument {name!r}.{close}")


def room(length):
    """Rounds tokens up, to the powers of two from 16 on: few graphs serve all."""
    return max(_SHORTEST, 1 << (length - 1).bit_length())


def as_inputs(options, vocab_size):
    """Takes what a graph has as inputs out of options of a search.

    Returns the options, with a value that is the same for all in place of each; and
    {name: value}, see `row_settings`, with the words of the seed as `seeds`. Raises a
    ValueError for a value out of its range.
    """
    options, inputs = dict(options), {}

    def take(name, stands_for):
        inputs[name], options[name] = options[name], stands_for

    Sampling(**{name: options[name] for name in _SAMPLING & options.keys()})
    limits = AnswerLimits(**{name: options[name] for name in _OF_ALL & options.keys()})
    check_integers(0, min_length=limits.min_length)
    check_repetition(limits)
    if options.get("allowed") is not None:
        table = allowed_table(options["allowed"])
        check_in_vocabulary(table, vocab_size)
        size = TableRoom(room(len(table)), room(most_children(table)))
        # Each row has its own table. A large one is a constant of another graph.
        if size.entries <= _MOST_ENTRIES:
            take("allowed", size)
            inputs["allowed"] = np.pad(table, [(0, size.entries - len(table)), (0, 0)])
    if "temperature" in options:
        take("temperature", 1.0)
    if options.get("top_k") is not None:
        options["top_k"] = min(options["top_k"], 2**30)
        take("top_k", room(options["top_k"]))
    if "top_p" in options and options["top_p"] < 1:
        take("top_p", 0.5)
    if limits.min_length:
        take("min_length", 1)
    if limits.repetition_penalty != 1:
        take("repetition_penalty", 2.0)
    if type(rules := options.get("rules")) is T5Rules:
        inputs["alpha"], options["rules"] = rules.alpha, T5Rules()
    elif type(rules) is HuggingFaceRules:
        inputs["length_penalty"] = rules.length_penalty
        options["rules"] = dataclasses.replace(rules, length_penalty=1.0)
    if "seed" in options:
        inputs["seeds"] = seed_words(options["seed"])
        options["seed"] = 0
    return options, {k: np.asarray(x, DTYPES[k])[()] for k, x in inputs.items()}


def check_answers(own, options, max_length):
    """Raises a ValueError unless answers fit the `AnswerLimits` of a call.

    `own` are the arguments of the run's search: the call's options take the place of
    its limits.
    """
    given = {name: options[name] for name in _OF_ALL & options.keys()}
    limits = replaced(own.get("limits") or AnswerLimits(), **given)
    check_limits(limits, max_length, own.get("eos_id", 1))


def own_arguments(configuration):
    """Returns what a configuration gives the search of its answers."""
    search = configuration.value(text_to_text, "decode_fn")
    return search.arguments() if search else {}


def configured_search(configuration, options):
    """Returns the search that options of `generate` ask for.

    It is `(model, batch, max_length) -> Decoded`, with the configuration's values; None
    if neither the options nor the run name one.
    """
    configured = configuration.value(text_to_text, "decode_fn")
    if not options:
        return configured
    beams, draws = _BEAMS & options.keys(), _DRAWS & options.keys()
    if beams and draws:
        raise UserError(
            f"{min(beams)} is of beam search and {min(draws)} of sampling: name one."
        )
    own = own_arguments(configuration)
    name = configured.__name__ if configured else "greedy_decode"
    wanted = "beam_search" if beams else "sample" if draws else name
    if wanted == "beam_search" and not {"rules"} & {*options, *own}:
        if not configuration.is_set(beam_search, "rules"):
            options = {**options, "rules": configuration.call(T5Rules)}
    if wanted not in _SEARCHES:
        raise UserError(f"The run's search {wanted!r} takes its arguments in gin.")
    base, search = {}, configured
    if wanted != name or configured is None:
        # Another search has the run's own limits too.
        base = {k: own[k] for k in ("limits", "eos_id") if k in own}
        search = configuration.bound(_SEARCHES[wanted])
    options = dict(options)
    for kind, part, names in (
        (Sampling, "sampling", _SAMPLING),
        (AnswerLimits, "limits", _OF_ALL),
    ):
        if given := {name: options.pop(name) for name in names & options.keys()}:
            options[part] = replaced(own.get(part) or kind(), **given)
    return functools.partial(search, **{**base, **options})


def draws(options, found):
    """Whether the `found` search of options of `generate` is `sample`."""
    name = getattr(getattr(found, "func", found), "__name__", "")
    return bool(_DRAWS & options.keys()) or name == "sample"


def check_most(name, value, most):
    """Raises a ValueError unless an argument is an integer of 1 to `most`."""
    check_integers(**{name: value})
    if value > most:
        raise UserError(f"{name} must be at most {most:,}. Received: {name}={value}")


def allowed_ids(allowed, codec):
    """Returns allowed answers, a list of str or of ids, as lists of ids."""
    one = isinstance(allowed, (str, bytes, dict)) or not hasattr(allowed, "__iter__")
    one = one or getattr(allowed, "shape", None) == ()  # an array's number
    answers = [] if one else [*allowed]
    if one or any(isinstance(answer, bytes) for answer in answers):
        raise TypeError(
            "allowed must be a list of str, or of lists of token ids. Received: "
            f"allowed={allowed!r:.200}"
        )
    found, texts = [], [answer for answer in answers if isinstance(answer, str)]
    for text in texts:
        check_unicode(text)
    if message := describe_changed_answers(codec.vocabulary("targets"), texts):
        warnings.warn(f"{message}.", stacklevel=4)
    for answer in answers:
        if isinstance(answer, str):
            answer = codec.ids("targets", answer, eos=False)
        # The graphs of earlier calls are found by ==, which arrays have not.
        found.append(answer.tolist() if hasattr(answer, "tolist") else answer)
    return found


class TellingModel:
    """A model that passes each token of an answer to `tell`, as decoding hands it back.

    `step` and `prefill` are its compiled `decode_step` and `prefill`, None if its steps
    read a prompt. `prompt_length` is the number of tokens of a language model's prompt,
    else 0. `tell` takes an int.
    """

    def __init__(self, model, step, prefill, prompt_length, tell):
        self._model, self._step = model, step
        if prefill is not None:
            self.prefill = prefill
        self._prompt_length, self._tell = prompt_length, tell

    def __getattr__(self, name):
        return getattr(self._model, name)

    def decode_step(self, tokens, cache, context, state):
        if len(tokens) > 1:
            raise UserError("stream() writes one answer. Leave beams and samples out.")
        if int(state.step) > self._prompt_length:
            self._tell(int(tokens[0]))
        return self._step(tokens, cache, context, state)


class Pieces:
    """Cuts the text of an answer that grows into pieces.

    Args:
        answerer: the `TextAnswers` that writes ids as text.

    Attributes:
        said: str, the pieces until now.
    """

    def __init__(self, answerer):
        self._answerer, self.said = answerer, ""

    def next(self, ids, ended):
        """Returns the next piece, a str: "" where more tokens may change the text.

        `ids` are all of the answer until now, `ended` whether it has no more.
        """
        found = self._answerer.write(np.asarray([ids], np.int32)).numpy()[0]
        # A character may end in a later token.
        whole = found.decode("utf-8", "ignore")
        if not ended and self._answerer.unsettled:
            whole = whole[: -self._answerer.unsettled]
        piece = ""
        if len(whole) > len(self.said) and whole.startswith(self.said):
            piece, self.said = whole[len(self.said) :], whole
        return piece


def tokens_as_they_come(decode):
    """Yields what `decode(tell)` tells, and at last what it returns.

    Decoding takes a thread: a search calls the model, and cannot be left in between.
    """
    told, stopped = queue.SimpleQueue(), threading.Event()

    def tell(token):
        if stopped.is_set():  # Nobody reads the stream any more.
            raise concurrent.futures.CancelledError
        told.put(token)

    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        answer = pool.submit(decode, tell)
        answer.add_done_callback(lambda _: told.put(None))
        try:
            yield from iter(told.get, None)
        finally:
            stopped.set()
        yield answer.result()
