"""How a loaded run finds answers: options of Python in place of gin's, and streams."""

import concurrent.futures
import dataclasses
import functools
import queue
import threading

from remixer_tf import configuration
from remixer_tf.decoding import AnswerLimits, Sampling
from remixer_tf.errors import UserError, check_integers, nearest
from remixer_tf.loaded.inputs import check_unicode

LONGEST_ANSWER = 2**16  # tokens: a search holds as many for each beam

_BEAMS = {"beams", "n_best", "rules"}
_SAMPLING = {"temperature", "top_k", "top_p"}
_DRAWS = _SAMPLING | {"num_samples", "seed"}
_OF_ALL = {"min_length", "allowed", "no_repeat_ngram_size", "repetition_penalty"}


def configured_search(options):
    """Returns the search that options of `generate` ask for, with gin's values.

    It is `(model, batch, max_length) -> Decoded`; None if neither the options nor the
    run name one.
    """
    configured = configuration.get_value("text_to_text.decode_fn")
    if not options:
        return configured
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
    options = dict(options)
    for kind, part, names in (
        (Sampling, "sampling", _SAMPLING),
        (AnswerLimits, "limits", _OF_ALL),
    ):
        if given := {name: options.pop(name) for name in names & options.keys()}:
            options[part] = dataclasses.replace(own.get(part) or kind(), **given)
    return functools.partial(search, **{**base, **options})


def check_most(name, value, most):
    """Raises a ValueError unless an argument is an integer of 1 to `most`."""
    check_integers(**{name: value})
    if value > most:
        raise UserError(f"{name} must be at most {most:,}. Received: {name}={value}")


def allowed_ids(allowed, codec):
    """Returns allowed answers, a list of str or of ids, as lists of ids."""
    one = isinstance(allowed, (str, bytes, dict)) or not hasattr(allowed, "__iter__")
    answers = [] if one else [*allowed]
    if one or any(isinstance(answer, bytes) for answer in answers):
        raise TypeError(
            "allowed must be a list of str, or of lists of token ids. Received: "
            f"allowed={allowed!r:.200}"
        )
    found = []
    for answer in answers:
        if isinstance(answer, str):
            check_unicode(answer)
            answer = codec.ids("targets", answer, eos=False)
        found.append(answer)
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
