"""CTranslate2 behind LitServe; `benchmarks.serve` runs it in their environment.

    serve_reference.py FOLDER VOCABULARY LENGTH COMPUTE_TYPE PORT

It imports nothing of this project. FOLDER has the model that `decode_anchors.convert`
wrote, VOCABULARY is a SentencePiece file. A request is `{"inputs": TEXT}`, its answer
`{"outputs": TEXT}`. Requests that arrive within 5 ms are computed together, at most 32:
of 8, 16, 32 and 64 that had the highest rate with 64 clients.
"""

import os
import sys

import ctranslate2
import litserve
import sentencepiece

FOLDER, VOCABULARY, LENGTH, COMPUTE_TYPE, PORT = sys.argv[1:]


class API(litserve.LitAPI):
    """Answers texts."""

    def setup(self, device):
        self.vocabulary = sentencepiece.SentencePieceProcessor(VOCABULARY)
        self.translator = ctranslate2.Translator(
            os.path.join(FOLDER, "ctranslate2"),
            compute_type=COMPUTE_TYPE,
            inter_threads=1,
            intra_threads=len(os.sched_getaffinity(0)),
        )

    def decode_request(self, request):
        return [f"<{i}>" for i in [*self.vocabulary.encode(request["inputs"]), 1]]

    def batch(self, inputs):
        return inputs

    def predict(self, questions):
        found = self.translator.translate_batch(
            questions, beam_size=1, max_decoding_length=int(LENGTH)
        )
        return [[int(x[1:-1]) for x in one.hypotheses[0]] for one in found]

    def unbatch(self, output):
        return output

    def encode_response(self, ids):
        return {"outputs": self.vocabulary.decode([i for i in ids if i > 1])}


if __name__ == "__main__":
    server = litserve.LitServer(
        API(max_batch_size=32, batch_timeout=0.005),
        accelerator="cpu",
        disable_openapi_url=True,
    )
    server.run(host="127.0.0.1", port=int(PORT), generate_client_file=False)
