"""OpenAI's completions: `/v1/completions` and `/v1/models`.

A prompt is what the model reads: a language model continues it, an encoder-decoder
answers it.

https://platform.openai.com/docs/api-reference/completions
"""

import contextlib
import json
import re
import time
import uuid

from starlette.responses import StreamingResponse
from starlette.routing import Route

from remixer_tf.server.fields import (
    Anything,
    Field,
    Flag,
    Name,
    Number,
    Only,
    Texts,
    read_fields,
    shown,
)
from remixer_tf.server.limits import Refusal, invalid
from remixer_tf.server.requests import json_response, read_json, unless_left
from remixer_tf.server.served import GENERATE, SCORE, Failure, draw_seed
from remixer_tf.server.signatures import as_json

_MOST_STOPS = 4


class _Stops(Field):
    """A text that ends an answer, or a few."""

    def read(self, name, value, limits):
        stops = value if isinstance(value, list) else [value]
        good = all(isinstance(x, str) and 0 < len(x) <= 200 for x in stops)
        if not good or len(stops) > _MOST_STOPS:
            raise invalid(
                f"{name} must be a text of 1 to 200 characters, or at most "
                f"{_MOST_STOPS} of them."
            )
        return stops

    def schema(self, limits):
        text = {"type": "string", "minLength": 1, "maxLength": 200}
        several = {"type": "array", "items": text, "maxItems": _MOST_STOPS}
        return {"oneOf": [text, several]}


class _StreamOptions(Field):
    """`{"include_usage": true}`."""

    def read(self, name, value, limits):
        if not isinstance(value, dict):
            raise invalid(f"{name} must be an object. Received: {shown(value)}")
        return read_fields({"include_usage": Flag()}, value, limits)

    def schema(self, limits):
        usage = {"anyOf": [{"type": "boolean"}, {"type": "null"}]}
        return {
            "type": "object",
            "properties": {"include_usage": usage},
            "additionalProperties": False,
        }


FIELDS = {
    "model": Name("name of the model", needed=True),
    "prompt": Texts("what the model reads: text, or list of texts", needed=True),
    "max_tokens": Number("tokens of an answer", high=2**16, integer=True),
    "temperature": Number("draws; the run's own search if not given", high=100),
    "top_p": Number("draws from this part of the probability", low=1e-6, high=1),
    "seed": Number("of draws; answer i of n has seed + i", high=2**53, integer=True),
    "n": Number("answers of each prompt", low=1, high="max_answers", integer=True),
    "stop": _Stops("texts that end an answer, which leaves them out"),
    "stream": Flag("send the answer as it is written"),
    "stream_options": _StreamOptions(),
    "echo": Flag("repeat the prompt, of language models"),
    "logprobs": Number("0 or 1: log-probabilities of tokens", high=1, integer=True),
    "best_of": Only(values=(1,)),
    "frequency_penalty": Only(values=(0, 0.0)),
    "presence_penalty": Only(values=(0, 0.0)),
    "logit_bias": Only(values=({},)),
    "suffix": Only(values=("",)),
    "user": Anything(),
}


def as_model(served):
    """Returns a model as `/v1/models` has it."""
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "remixer_tf",
        **served.describe(),
    }


async def models(request):
    """The models that answer."""
    found = request.app.models
    data = [as_model(served) for served in found.ready()]
    ready = {served.name for served in found.ready()}
    loading = [name for name in found.names() if name not in ready]
    return json_response({"object": "list", "data": data, "loading": loading})


async def completions(request):
    """Answers prompts."""
    app = request.app
    given = read_fields(FIELDS, await read_json(request, app.limits), app.limits)
    served = app.models.get(given["model"])
    served.signature(GENERATE)
    prompts, _ = given["prompt"]
    if len(prompts) * given.get("n", 1) > app.limits.max_rows:
        raise invalid(f"At most {app.limits.max_rows} answers of a request.")
    if given.get("echo") and not served.continues:
        raise invalid(
            f"{served.name} answers prompts and does not continue them, so echo is not "
            "for it. POST /score says how likely given answers are."
        )
    about = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
    }
    if given.get("stream"):
        return await _streamed(request, served, given, about)
    choices, usage = await unless_left(request, _choices(app, served, given))
    return json_response({**about, "choices": choices, "usage": usage})


def _options(given):
    """The options of `generate` of each of the n answers."""
    options = {x: given[x] for x in ("temperature", "top_p", "seed") if x in given}
    if given.get("max_tokens"):
        options["max_length"] = given["max_tokens"]
    if given.get("n", 1) == 1:
        return [options]
    seed = given.get("seed", draw_seed())
    return [options | {"seed": seed + i} for i in range(given["n"])]


@contextlib.contextmanager
def _fields_as_sent():
    """A block whose refusals name `max_length` as a client of OpenAI's does."""
    try:
        yield
    except Refusal as refusal:
        # Not a parameter of gin, such as text_to_text.max_length.
        refusal.message = re.sub(
            r"(?<![.\w])max_length\b", "max_tokens", refusal.message
        )
        raise


async def _choices(app, served, given):
    """The choices of a request, and its usage."""
    prompts, _ = given["prompt"]
    if given.get("max_tokens") == 0:
        return await _scored_prompts(app, served, given)
    rows, n = [], given.get("n", 1)
    with _fields_as_sent():
        for options in _options(given):
            signature, more = await served.questions(prompts, options)
            rows += more
        found = await served.ask(signature, rows)
    app.metrics.count_answers(served, GENERATE, found)
    # The answers of a prompt follow each other.
    order = [j * len(prompts) + i for i in range(len(prompts)) for j in range(n)]
    answers = [found[i] for i in order]
    prompts = [prompt for prompt in prompts for _ in range(n)]
    scores = [None] * len(answers)
    if "logprobs" in given:
        scores = await _token_scores(served, prompts, answers, given.get("echo"))
    befores = [""] * len(answers)
    texts = [answer["outputs"].decode("utf-8", "replace") for answer in answers]
    if given.get("echo"):
        tokens = [answer["tokens"] for answer in answers]
        befores, texts = await served.continued(prompts, tokens)
    choices = []
    for index, (before, text, answer, score) in enumerate(
        zip(befores, texts, answers, scores, strict=True)
    ):
        text, stopped = _cut(text, given.get("stop", ()))
        if stopped and score:
            score = _before(score, len(before + text))
        choices.append(
            {
                "index": index,
                "text": before + text,
                "logprobs": score,
                "finish_reason": _reason(served, answer.get("tokens"), stopped),
            }
        )
    return choices, _usage_of(answers, n)


async def _token_scores(served, prompts, answers, echo):
    """The `logprobs` of answers, with those of the prompts if `echo`."""
    rows = []
    for prompt, answer in zip(prompts, answers, strict=True):
        if "tokens" not in answer:
            raise invalid(f"{served.name} is an export, which gives no logprobs.")
        inputs, targets = (b"", prompt) if echo else (prompt, b"")
        row = {"inputs": inputs, "targets": targets}
        rows.append(row | {"target_ids": answer["tokens"]})
    found = await served.ask(served.signature(SCORE), rows)
    return [_logprobs(one) for one in found]


async def _scored_prompts(app, served, given):
    """Choices without new tokens: the prompts, and how likely they are."""
    if not given.get("echo") or "logprobs" not in given:
        raise invalid("max_tokens=0 writes nothing: give echo and logprobs with it.")
    prompts, _ = given["prompt"]
    rows = [{"inputs": b"", "targets": prompt, "target_ids": []} for prompt in prompts]
    found = await served.ask(served.signature(SCORE), rows)
    app.metrics.count_answers(served, SCORE, found)
    texts, _ = await served.continued(prompts, [[] for _ in prompts])
    choices = [
        {
            "index": index,
            "text": text,
            "logprobs": _logprobs(one),
            "finish_reason": "length",
        }
        for index, (text, one) in enumerate(zip(texts, found, strict=True))
    ]
    read = sum(len(one["tokens"]) for one in found)
    return choices, _usage(read, 0)


def _logprobs(scored):
    """A scored text as OpenAI's form has it."""
    offsets, at = [], 0
    for text in scored["texts"]:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": scored["texts"],
        "token_logprobs": as_json(scored["log_probs"]),
        "top_logprobs": None,
        "text_offset": offsets,
    }


def _before(logprobs, length):
    """The `logprobs` of tokens that begin in so many characters of the text."""
    number = sum(at < length for at in logprobs["text_offset"])
    return {name: x and x[:number] for name, x in logprobs.items()}


def _usage(read, written):
    """Numbers of tokens, as OpenAI's form has them."""
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


def _usage_of(answers, n):
    """The tokens of n answers to each prompt; None where an export does not say."""
    if any("input_tokens" not in answer for answer in answers):
        return None
    read = sum(answer["input_tokens"] for answer in answers[::n])
    return _usage(read, sum(len(answer["tokens"]) for answer in answers))


def _reason(served, tokens, stopped):
    """Why an answer ended."""
    ended = stopped or tokens is None or served.eos_id in tokens
    return "stop" if ended else "length"


def _cut(text, stops):
    """A text before the first of `stops` in it, and whether there is one."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _held(text, stops):
    """The characters at a text's end that may be the beginning of a stop."""
    return max(
        (n for x in stops for n in range(1, len(x)) if text.endswith(x[:n])), default=0
    )


async def _streamed(request, served, given, about):
    """The response that sends pieces of answers, one answer after the other."""
    for name in ("logprobs", "echo"):
        if given.get(name) not in (None, False):
            raise invalid(f"{name} is not streamed. Leave it or stream out.")
    if given.get("max_tokens") == 0:
        raise invalid("max_tokens=0 writes nothing.")
    app = request.app
    chunks = _chunks(app, served, given)
    # Before the response begins, as it may be a refusal.
    first = await unless_left(request, anext(chunks))

    async def events():
        try:
            yield _event({**about, **first})
            async for chunk in chunks:
                yield _event({**about, **chunk})
            yield b"data: [DONE]\n\n"
        except Refusal as refusal:  # The status is sent already.
            if isinstance(refusal, Failure):
                app.say(f"/v1/completions: {refusal.kind} while computing")
            error = {"message": refusal.message, "type": "server_error"}
            yield _event({"error": error})
        finally:
            await chunks.aclose()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), 200, headers, "text/event-stream")


def _event(content):
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


async def _chunks(app, served, given):
    """Yields what events say of the answers of a request."""
    prompts, _ = given["prompt"]
    stops, written, index = given.get("stop", ()), 0, 0
    for prompt in prompts:
        for options in _options(given):
            text, said, tokens, stopped = "", 0, None, False
            pieces = served.stream(prompt, options)
            try:
                with _fields_as_sent():
                    async for piece, until_now in pieces:
                        text, tokens = text + piece, until_now
                        whole, stopped = _cut(text, stops)
                        held = 0 if stopped else _held(whole, stops)
                        new = whole[said : len(whole) - held]
                        said += len(new)
                        if new:
                            yield {"choices": [_piece(index, new)]}
                        if stopped:
                            break
            finally:
                await pieces.aclose()
            written += len(tokens or ())
            rest = "" if stopped else text[said:]
            reason = _reason(served, tokens, stopped)
            yield {"choices": [_piece(index, rest, reason)]}
            answer = {"tokens": tokens or (), "input_tokens": 0}
            app.metrics.count_answers(served, GENERATE, [answer])
            index += 1
    if given.get("stream_options", {}).get("include_usage"):
        read = await served.count_tokens(prompts)
        usage = None if read is None else _usage(read, written)
        yield {"choices": [], "usage": usage}


def _piece(index, text, reason=None):
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def routes():
    """Returns the routes."""
    return [
        Route("/v1/models", models, name="/v1/models"),
        Route("/v1/completions", completions, methods=["POST"], name="/v1/completions"),
    ]
