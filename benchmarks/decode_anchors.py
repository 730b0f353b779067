"""How fast others decode: run by `benchmarks.decode`, in their environment.

It imports nothing of this project, which need not be installed there. Lines come in,
`library batch beams`, and for each a line with the seconds goes out.
"""

import json
import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # Others take turns.

import numpy as np  # noqa: E402
import torch  # noqa: E402


class HuggingFace:
    """`generate` of transformers, in float32."""

    name = "transformers"

    def __init__(self, folder, length):
        from transformers import T5ForConditionalGeneration

        self._model = T5ForConditionalGeneration.from_pretrained(folder).eval()
        self._length = length

    def decode(self, inputs, beams):
        ids = torch.tensor(inputs)
        with torch.no_grad():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=beams,
                do_sample=False,
                min_new_tokens=self._length,
                max_new_tokens=self._length,
            )


class CTranslate2:
    """CTranslate2's translator, in float32."""

    name = "ctranslate2"

    def __init__(self, folder, length):
        import ctranslate2
        from ctranslate2.converters import TransformersConverter

        class Converter(TransformersConverter):
            def load_model(self, model_class, name, **options):
                model = model_class.from_pretrained(name, **options)
                # transformers 5 says True of all, and logits would be scaled.
                model.config.tie_word_embeddings = False
                return model

            def load_tokenizer(self, tokenizer_class, name, **options):
                return _Pieces()

        path = os.path.join(folder, "ctranslate2")
        Converter(folder).convert(path, force=True)
        self._translator = ctranslate2.Translator(
            path,
            compute_type="float32",
            inter_threads=1,
            intra_threads=torch.get_num_threads(),
        )
        self._length = length

    def decode(self, inputs, beams):
        self._translator.translate_batch(
            [[f"<{i}>" for i in row] for row in inputs.tolist()],
            beam_size=beams,
            max_batch_size=len(inputs),
            min_decoding_length=self._length,
            max_decoding_length=self._length,
        )


class _Pieces:
    """A tokenizer with a piece for each id, as far as the converter asks for one."""

    pad_token, eos_token, unk_token, bos_token = "<0>", "<1>", "<2>", "<0>"
    pad_token_id, eos_token_id, unk_token_id = 0, 1, 2

    def get_vocab(self):
        return {f"<{i}>": i for i in range(32128)}

    def convert_ids_to_tokens(self, token):
        return f"<{token}>"


def main(folder, length):
    libraries = {}
    for kind in (HuggingFace, CTranslate2):
        try:
            libraries[kind.name] = kind(folder, int(length))
        except ImportError as error:
            print(f"{kind.name}: {error}", file=sys.stderr)
    print(json.dumps(sorted(libraries)), flush=True)
    for line in sys.stdin:
        name, inputs, batch, beams = line.split()
        ids = np.random.default_rng(0).integers(2, 32000, (int(batch), int(inputs)))
        libraries[name].decode(ids, int(beams))
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
