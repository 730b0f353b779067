"""A served model without TensorFlow: its answer is the text in capital letters."""

import threading

import numpy as np

from remixer_tf.server.limits import invalid
from remixer_tf.server.served import GENERATE, SCORE, Served
from remixer_tf.server.signatures import Signature, Tensor

STRING = Tensor("string")
LONGEST = 16


class Echo(Served):
    """Answers a text by its capital letters, at most `max_length` bytes of them.

    Attributes:
        batches: list of the numbers of rows, as they were computed.
        may_compute: `threading.Event` that computations wait for.
    """

    kind, version, longest, continues, eos_id = "Echo", "7", LONGEST, True, ord("!")

    def __init__(self, name, limits, thread, sizes=(1, 4)):
        super().__init__(name, "/home/somebody/secret", limits, thread)
        self.batches, self.texts = [], []
        self.may_compute = threading.Event()
        self.may_compute.set()
        outputs = {"outputs": STRING, "scores": Tensor("float32")}
        outputs["trimmed"] = Tensor("bool")
        inputs = {"inputs": STRING}
        settings = {
            "max_length": Tensor("int32", (), None, 1, LONGEST),
            "seed": Tensor("int64", (), None, 0, 2**62),
        }
        self.signatures = {
            "serving_default": Signature(inputs, outputs, self._answer, sizes),
            GENERATE: Signature(
                inputs | settings, outputs, self._answer, sizes, self._group
            ),
            SCORE: Signature(
                inputs | {"targets": STRING},
                {"scores": Tensor("float32")},
                self._score,
                sizes,
            ),
            "vectors": Signature(
                {"numbers": Tensor("float32", (2,))},
                {"sums": Tensor("float32"), "numbers": Tensor("float32", (2,))},
                self._add,
                sizes,
            ),
        }

    def _warm_up(self, say):
        say("warm")

    @staticmethod
    def _group(row):
        return row.get("seed") is not None

    def _answer(self, rows):
        assert self.may_compute.wait(20)
        self.batches.append(len(rows))
        self.texts += [row["inputs"] for row in rows]
        found = []
        for row in rows:
            text = row["inputs"].decode("utf-8", "replace")
            if text == "bug" or (text == "alone" and len(rows) > 1):
                raise KeyError("/home/somebody/secret/file")
            if text == "mistake":
                raise TypeError("/home/somebody/secret has no such text")
            seed = "" if row.get("seed") is None else str(int(row["seed"]))
            text = (text.upper() + seed)[: int(row.get("max_length") or LONGEST)]
            found.append(
                {
                    "outputs": text.encode(),
                    "scores": np.float32(-len(text)),
                    "trimmed": False,
                    "tokens": [*text.encode()],
                    "input_tokens": len(row["inputs"]),
                }
            )
        return found

    def _score(self, rows):
        self.batches.append(len(rows))
        found = []
        for row in rows:
            ids = [*row["targets"], *row.get("target_ids", [])]
            found.append(
                {
                    "scores": np.float32(-len(ids)),
                    "num_tokens": len(ids),
                    "greedy": True,
                    "trimmed": False,
                    "tokens": ids,
                    "log_probs": [-1.0] * len(ids),
                    "texts": [*map(chr, ids)],
                }
            )
        return found

    def _add(self, rows):
        return [{"sums": r["numbers"].sum(), "numbers": r["numbers"]} for r in rows]

    async def questions(self, texts, options):
        if (longest := options.get("max_length", 1)) > LONGEST:
            raise invalid(f"max_length is too much: {longest}. (x.max_length says so.)")
        return self.signatures[GENERATE], [{"inputs": x, **options} for x in texts]

    async def stream(self, text, options):
        _, (row,) = await self.questions([text], options)
        (answer,) = await self.ask(self.signatures[GENERATE], [row])
        tokens = answer["tokens"]
        for i in range(len(tokens)):
            yield chr(tokens[i]), tokens[: i + 1]

    async def continued(self, texts, tokens):
        texts = [text.decode() for text in texts]
        return texts, [" " + bytes(ids).decode() for ids in tokens]

    async def count_tokens(self, texts):
        return sum(map(len, texts))
