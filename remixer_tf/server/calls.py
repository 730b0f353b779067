"""The calls of a loaded run: /generate, /score, /classify, /embed and /answer."""

import numpy as np

from remixer_tf.server.fields import Choice, Flag, Name, Number, Texts, read_fields
from remixer_tf.server.limits import invalid
from remixer_tf.server.requests import json_response, read_json, unless_left
from remixer_tf.server.served import GENERATE, SCORE
from remixer_tf.server.signatures import as_json, read_row

_MODEL = Name("name of the model; may be left out where there is one")
_LONG = Choice(
    "cut texts that are longer than the model reads (warn), or refuse them",
    choices=("warn", "raise"),
)
_INPUTS = Texts("text, or list of texts", needed=True)
OPTIONS = {
    "max_length": Number("tokens of an answer", low=1, high=2**16, integer=True),
    "temperature": Number("draws; 0 takes the likeliest tokens"),
    "top_p": Number("draws from this part of the probability", low=1e-6, high=1),
    "seed": Number("of draws", high=2**63 - 1, integer=True),
    "top_k": Number("draws from so many tokens", low=1, high=2**30, integer=True),
    "num_samples": Number("answers drawn", low=1, high="max_answers", integer=True),
    "beams": Number("of beam search", low=1, high="max_answers", integer=True),
    "n_best": Number("answers of beams", low=1, high="max_answers", integer=True),
    "alpha": Number("length penalty of T5's beam search", high=100),
    "length_penalty": Number("of Hugging Face's beam search", low=-100, high=100),
    "min_length": Number("tokens of an answer", high=2**16, integer=True),
    "no_repeat_ngram_size": Number("tokens", high=1000, integer=True),
    "repetition_penalty": Number("of tokens that were read", low=0.01, high=100),
    "allowed": Texts("the answers to choose from"),
    "skip_special_tokens": Flag("leave out <extra_id_0> and its kin"),
}
FIELDS = {
    GENERATE: {"inputs": _INPUTS, "model": _MODEL, "on_long": _LONG, **OPTIONS},
    SCORE: {
        "inputs": _INPUTS,
        "targets": Texts("text, or as many texts as inputs", needed=True),
        "model": _MODEL,
        "on_long": _LONG,
    },
    "classify": {
        "inputs": Texts(
            'text, image as {"b64": ..}, or list of them', needed=True, image=True
        ),
        "inputs_b": Texts("second texts of pairs, as many"),
        "model": _MODEL,
        "on_long": _LONG,
    },
    "embed": {
        "inputs": _INPUTS,
        "inputs_b": Texts("second texts of pairs, as many"),
        "model": _MODEL,
        "on_long": _LONG,
    },
    "answer": {
        "question": Texts("text, or list of texts", needed=True),
        "text": Texts("the text with the answer; one, or as many", needed=True),
        "model": _MODEL,
    },
    "observe": {
        "inputs": Texts("text that the model reads", needed=True, one=True),
        "targets": Texts("its answer, or the second text of a pair", one=True),
        "layer": Name("path of the layer whose heads are returned each"),
        "model": _MODEL,
    },
}


async def generate(request):
    """Answers texts: `run.generate`."""
    server, given, served = await _asked(request, GENERATE)
    texts, one = given["inputs"]
    options = {name: given[name] for name in OPTIONS if name in given}
    if "allowed" in options:
        allowed, _ = options["allowed"]
        options["allowed"] = [x.decode("utf-8", "replace") for x in allowed]
    signature, rows = await served.questions(texts, options)
    answers = await unless_left(request, served.ask(signature, rows))
    server.metrics.count_answers(served, GENERATE, answers)
    _check_long(given, answers)
    several = "all_outputs" in answers[0]
    found = {
        "outputs": [x["all_outputs" if several else "outputs"] for x in answers],
        "scores": [x["all_scores" if several else "scores"] for x in answers],
        "trimmed": [x["trimmed"] for x in answers],
    }
    return _response(served, found, one)


async def score(request):
    """How likely the model finds given targets: `run.score`."""
    server, given, served = await _asked(request, SCORE)
    inputs, one = given["inputs"]
    targets, also_one = given["targets"]
    if one != also_one or len(inputs) != len(targets):
        raise invalid("inputs and targets must be two texts, or two lists as long.")
    rows = [{"inputs": a, "targets": b} for a, b in zip(inputs, targets, strict=True)]
    signature = served.signature(SCORE)
    answers = await unless_left(request, served.ask(signature, rows))
    server.metrics.count_answers(served, SCORE, answers)
    _check_long(given, answers)
    names = ("scores", "num_tokens", "greedy", "trimmed")
    found = {name: [x[name] for x in answers] for name in names}
    if "texts" in answers[0]:
        found["tokens"] = [
            [
                {"text": text, "log_probability": value}
                for text, value in zip(x["texts"], x["log_probs"], strict=True)
            ]
            for x in answers
        ]
    return _response(served, found, one)


async def classify(request):
    """The class of texts or images: `run.classify`."""
    served, answers, one = await _encoded(request, "classify")
    found = {
        "labels": [x.get("outputs", x["class_ids"]) for x in answers],
        "probability": [float(np.max(x["probabilities"])) for x in answers],
        "probabilities": [x["probabilities"] for x in answers],
    }
    return _response(served, found, one)


async def embed(request):
    """Vectors of texts: `run.embed`."""
    served, answers, one = await _encoded(request, "embed")
    return _response(served, {"embeddings": [x["embeddings"] for x in answers]}, one)


async def answer(request):
    """Answers questions by spans of a text: `run.answer`."""
    server, given, served = await _asked(request, "answer")
    questions, one = given["question"]
    texts, one_text = given["text"]
    texts = texts * len(questions) if one_text else texts
    if len(questions) != len(texts) or one and not one_text:
        raise invalid("text must be one text, or as many as there are questions.")
    signature = served.signature("answer")
    rows = [{"question": a, "text": b} for a, b in zip(questions, texts, strict=True)]
    answers = await unless_left(request, served.ask(signature, rows))
    server.metrics.count_answers(served, "answer", answers)
    return _response(served, {"outputs": [x["outputs"] for x in answers]}, one)


async def observe(request):
    """Mixing matrices and attention over a text, for the page."""
    _, given, served = await _asked(request, "observe")
    if served.observes is None:
        raise invalid(f"The model {served.name} shows no matrices.")
    texts = {name: given.get(name, ([b""],))[0][0] for name in ("inputs", "targets")}
    row = texts | {"layer": given.get("layer")}
    (found,) = await unless_left(request, served.ask(served.observes, [row]))
    return _response(served, {name: [value] for name, value in found.items()}, True)


ROUTES = {f.__name__: f for f in (generate, score, classify, embed, answer, observe)}


async def _asked(request, call):
    """The server, the fields of a request, and the model that it names."""
    server = request.app
    body = await read_json(request, server.limits)
    given = read_fields(FIELDS[call], body, server.limits)
    return server, given, server.models.get(given.get("model"))


async def _encoded(request, call):
    """The model, answers and whether it is one text, of an encoder's call."""
    server, given, served = await _asked(request, call)
    texts, one = given["inputs"]
    signature = served.signature(call)
    first, *others = signature.inputs
    rows = [{first: text} for text in texts]
    for name in others:  # the second texts of pairs
        seconds, _ = given.get(name, ([b""] * len(texts), one))
        if len(seconds) != len(texts):
            raise invalid(f"{name} must have as many texts as inputs.")
        for row, text in zip(rows, seconds, strict=True):
            row[name] = text
    if "inputs_b" in given and not others:
        raise invalid(f"The model {served.name} reads one text. Leave inputs_b out.")
    rows = [read_row(signature, row, server.limits) for row in rows]
    answers = await unless_left(request, served.ask(signature, rows))
    server.metrics.count_answers(served, call, answers)
    _check_long(given, answers)
    return served, answers, one


def _check_long(given, answers):
    if given.get("on_long") != "raise":
        return
    for number, answer in enumerate(answers):
        if answer.get("trimmed"):
            raise invalid(
                f"Text {number} is longer than the model reads (on_long='raise')."
            )


def _response(served, columns, one):
    """The response of lists of answers; of one text their only element."""
    found = {k: as_json(v[0] if one else v) for k, v in columns.items()}
    return json_response({"model": served.name, "version": served.version, **found})
