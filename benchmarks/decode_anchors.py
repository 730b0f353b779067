"""Decoding by another library; `benchmarks.decode` runs it in their environment.

    decode_anchors.py FOLDER LENGTH LIBRARY

It imports nothing of this project, which need not be installed there. It says "ready".
Lines come in, `inputs batch beams`, and for each a line "done SECONDS" goes out, with
the CPU time that it took. Lengths of answers may follow, see
`benchmarks.answer_lengths`: then EOS ends an answer, and its length is checked. Each
library has a process: CTranslate2 4.8.5 decodes at half its rate where torch 2.13 has
computed anything before (1 row: 103 and 221 tokens/s, 2026-11-25).
"""

import functools
import os
import subprocess
import sys
import time

import numpy as np


class HuggingFace:
    """`generate` of transformers, in float32."""

    def __init__(self, folder, length):
        from transformers import T5ForConditionalGeneration

        self._model = T5ForConditionalGeneration.from_pretrained(folder).eval()
        self._length = length

    def decode(self, inputs, beams, lengths=()):
        import torch

        ids = torch.tensor(inputs)
        with torch.no_grad():
            found = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=beams,
                do_sample=False,
                min_new_tokens=1 if lengths else self._length,
                max_new_tokens=self._length,
            )
        return np.count_nonzero(found.numpy(), axis=1).tolist()


class CTranslate2:
    """CTranslate2's translator, in float32 or int8."""

    def __init__(self, folder, length, compute_type="float32"):
        import ctranslate2

        # In a process of its own, because torch computes in it.
        command = [sys.executable, __file__, folder, str(length), "convert"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        self._translator = ctranslate2.Translator(
            os.path.join(folder, "ctranslate2"),
            compute_type=compute_type,
            inter_threads=1,
            intra_threads=len(os.sched_getaffinity(0)),
        )
        self._length = length

    def decode(self, inputs, beams, lengths=()):
        found = self._translator.translate_batch(
            [[f"<{i}>" for i in row] for row in inputs.tolist()],
            beam_size=beams,
            max_batch_size=len(inputs),
            min_decoding_length=1 if lengths else self._length,
            max_decoding_length=self._length,
            return_end_token=True,
            max_input_length=0,  # Else it reads 1,024 tokens, and no more.
        )
        return [len(one.hypotheses[0]) for one in found]


def convert(folder, length):
    """Writes the model as CTranslate2 reads it."""
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):
        def load_model(self, model_class, name, **options):
            model = model_class.from_pretrained(name, **options)
            # transformers 5 says True of all, and logits would be scaled.
            model.config.tie_word_embeddings = False
            return model

        def load_tokenizer(self, tokenizer_class, name, **options):
            return _Pieces()

    Converter(folder).convert(os.path.join(folder, "ctranslate2"), force=True)


class _Pieces:
    """A tokenizer with a piece for each id, as far as the converter asks for one."""

    pad_token, eos_token, unk_token, bos_token = "<0>", "<1>", "<2>", "<0>"
    pad_token_id, eos_token_id, unk_token_id = 0, 1, 2

    def get_vocab(self):
        return {f"<{i}>": i for i in range(32128)}

    def convert_ids_to_tokens(self, token):
        return f"<{token}>"


LIBRARIES = {
    "transformers": HuggingFace,
    "ctranslate2": CTranslate2,
    "ctranslate2_int8": functools.partial(CTranslate2, compute_type="int8"),
}


def main(folder, length, name):
    if name == "convert":
        convert(folder, length)
        return
    try:
        library = LIBRARIES[name](folder, int(length))
    except ImportError as error:
        sys.exit(f"{name}: {error}")
    print("ready", flush=True)
    for line in sys.stdin:
        inputs, batch, beams, *lengths = map(int, line.split())
        questions = np.random.default_rng(0).integers(2, 32000, (batch, inputs))
        if lengths:
            questions = 1000 + np.array([[length] * inputs for length in lengths])
        start = time.process_time()
        found = library.decode(questions, beams, lengths)
        taken = time.process_time() - start
        if lengths and found != lengths:
            sys.exit(f"{name}: answers are of other lengths. Received: {found}")
        print("done", taken, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
