"""A model that is served: its signatures, its thread, and whether it is ready."""

import asyncio
import collections
import contextlib
import re
import secrets
import time

from remixer_tf.errors import UserError
from remixer_tf.server.batching import Batcher
from remixer_tf.server.limits import Refusal, invalid, try_later

GENERATE, SCORE = "generate", "score"
CALLS = (GENERATE, SCORE, "classify", "embed", "answer")
_CANNOT = {
    GENERATE: "writes no text",
    SCORE: "gives texts no likelihood",
    "classify": "has no classes",
    "embed": "gives no vectors",
    "answer": "does not answer by spans of a text",
}


class Served:
    """A loaded model. A subclass has the signatures.

    Attributes:
        name: str, as requests name it.
        version: str, such as the step of a checkpoint.
        kind: str, what the model is.
        default: str, the signature of a request that names none.
        signatures: dictionary of `Signature`s.
        longest: int, tokens of an answer at most; None if unknown.
        compilations: int, computations of a new shape after `warm_up`: each is
            compiled.
        observes: the `Signature` of /observe, in no other protocol, as its answers are
            no tensors; None for a model that shows nothing.
        continues: bool, whether its answers continue what it is asked.
        eos_id: int, the token that ends an answer.
        created: int, when it was loaded, in seconds since 1970.
        thread: the `Thread` that computes.
        is_compiling: bool, whether it still gets faster.
    """

    default = "serving_default"
    kind, version, longest, observes = "", "", None, None
    platform, continues, eos_id = "remixer_tf", False, 1
    is_compiling = False

    def __init__(self, name, folder, limits, thread):
        self.name, self.limits, self.thread = name, limits, thread
        self._folder = folder
        self.signatures, self.compilations = {}, 0
        self._compiled, self._warm = set(), False
        self.batcher = None
        self._answered = collections.deque(maxlen=32)  # when, and how many rows
        self.created = int(time.time())

    def open(self, observe=lambda rows, seconds, error: 0):
        """Takes questions from here on, in the running event loop."""
        self.batcher = Batcher(self.thread, observe=observe)

    def close(self):
        """Ends the thread after its last computation."""
        self.thread.stop()

    def warm_up(self, say):
        """Compiles all that requests may need. Called once, in the thread."""
        self._warm_up(say)
        self._warm = True

    def compiles(self, *shape):
        """Notes a computation of a shape: any hashables."""
        if shape not in self._compiled:
            self._compiled.add(shape)
            self.compilations += self._warm

    def signature(self, name=None):
        """Returns a `Signature` by its name, or raises a `Refusal`."""
        name = name or self.default
        if name in self.signatures:
            return self.signatures[name]
        what = _CANNOT.get(name, f"has no signature {name!r:.80}")
        raise invalid(
            f"The model {self.name} {what}. It takes: {', '.join(self.signatures)}."
        )

    def waiting(self):
        """Returns how many rows wait."""
        return self.batcher.waiting()

    async def ask(self, signature, rows):
        """Returns a `Signature`'s answers to rows. Raises a `Refusal`."""
        self.check_queue(len(rows))
        try:
            async with self.in_time():
                found = await self._asked(signature, rows)
        except Exception as error:
            raise self.refusal(error) from None
        self._answered.append((time.monotonic(), len(rows)))
        return found

    @contextlib.asynccontextmanager
    async def in_time(self):
        """A block that `limits.timeout` ends. It then raises a `Refusal`."""
        try:
            async with asyncio.timeout(self.limits.timeout):
                yield
        except TimeoutError:
            raise try_later(
                408, f"No answer in {self.limits.timeout} s. Ask for fewer tokens."
            ) from None

    async def _asked(self, signature, rows):
        return await self.batcher.ask(signature, rows)

    def check_queue(self, rows):
        """Raises a `Refusal` if so many rows more may not wait."""
        ahead, most = self.waiting(), self.limits.max_queue
        if ahead + rows <= most:
            return
        seconds = 1
        if self._answered:
            passed = time.monotonic() - self._answered[0][0]
            seconds = passed * ahead / sum(number for _, number in self._answered)
        raise try_later(
            429,
            f"{ahead} texts wait for this model, and at most {most} may. Send the "
            "request again later.",
            min(seconds, 60),
        )

    def refusal(self, error):
        """Returns the `Refusal` of what a computation raised."""
        if isinstance(error, Refusal):
            return error
        if isinstance(error, (UserError, TypeError)):
            return invalid(self._without_paths(str(error)))
        if type(error).__name__ == "InvalidArgumentError":  # an export's own limits
            found = re.search(r"assertion failed: (.*)", str(error))
            if found:
                text = re.sub(r"[][]", "", found[1].strip())
                return invalid(self._without_paths(text))
        return Failure(type(error).__name__)

    def _without_paths(self, text):
        if self._folder:
            text = text.replace(self._folder, self.name)
        return re.sub(r"(?<![\w.])/[\w.-]+(/[\w.-]+)+", "...", " ".join(text.split()))

    def describe(self):
        """Returns facts about the model, as JSON has them."""
        inputs = {call: self.takes(call) for call in CALLS if call in self.signatures}
        found = {"kind": self.kind, "version": self.version, "calls": [*inputs]}
        found |= {"inputs": inputs, "observes": self.observes is not None}
        return found | ({"max_length": self.longest} if self.longest else {})

    def takes(self, call):
        """Returns the names that a call of the model takes, a list."""
        return [*self.signatures[call].inputs]

    async def questions(self, texts, options):
        """Returns a `Signature` and rows of it that answer texts.

        Args:
            texts: list of bytes.
            options: dictionary of options of `generate`, checked.
        """
        raise NotImplementedError

    async def stream(self, text, options):
        """Yields pieces of the answer to a text, and its tokens until then.

        Here it yields the whole answer. Arguments are those of `questions`.
        """
        signature, (row,) = await self.questions([text], options)
        (answer,) = await self.ask(signature, [row])
        text = answer["outputs"].decode("utf-8", "replace")
        yield text, answer.get("tokens")

    async def continued(self, texts, tokens):
        """Returns texts that tokens continue, where the model `continues` them.

        Each text with its tokens is decoded as one row, which has blanks where two
        texts would have lost them.

        Args:
            texts: list of bytes.
            tokens: list of as many lists of ids.

        Returns:
            two lists of str: the texts as the vocabulary writes them, and what follows.
        """
        raise NotImplementedError

    async def count_tokens(self, texts):
        """Returns how many tokens the model reads of texts; None if unknown."""
        return None


class Failure(Refusal):
    """A computation failed by a fault of the server's; `kind` is the exception's."""

    def __init__(self, kind):
        super().__init__(500, "The server could not compute this answer.")
        self.kind = kind


def draw_seed():
    """Returns a new seed, an int."""
    return secrets.randbits(32)
