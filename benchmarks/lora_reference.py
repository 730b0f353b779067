"""PEFT's answers; `benchmarks.lora` runs it by a Python that has torch and peft.

It imports nothing of this project, which need not be installed there.

    lora_reference.py FOLDER RANK ALPHA     writes published/ and answers.npz
    lora_reference.py FOLDER merged         writes merged.npz, of the export merged/
"""

import os
import sys

import numpy as np
import torch
from parity_reference import GATED, T5, examples, spread_biases


def logits(model, batch):
    """The logits of a batch in our names."""
    ids = torch.tensor(batch["encoder_input_tokens"])
    with torch.no_grad():
        found = model(
            input_ids=ids,
            attention_mask=ids != 0,
            decoder_input_ids=torch.tensor(batch["decoder_input_tokens"]),
        )
    return found.logits.numpy()


def make(folder, rank, alpha):
    """Writes a random T5.1.1, its adapters, and its logits with and without them."""
    import peft
    import transformers

    torch.manual_seed(0)
    config = transformers.T5Config(**{**T5, **GATED, "vocab_size": 384})
    model = transformers.T5ForConditionalGeneration(config).eval()
    model.lm_head.weight = torch.nn.Parameter(
        torch.randn_like(model.lm_head.weight) * config.d_model**-0.5
    )
    model.config.tie_word_embeddings = False
    spread_biases(model)
    model.save_pretrained(os.path.join(folder, "published"))
    inputs, targets = examples(384)
    start = np.pad(targets, [(0, 0), (1, 0)])[:, :-1]
    batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": start}
    plain = logits(model, batch)
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=["q", "v"], init_lora_weights=False
    )
    model = peft.get_peft_model(model, config).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # PEFT's random B makes attention 10 times as sharp.
            parameter.data *= 0.1
    adapters = {
        name.removeprefix("base_model.model.")
        .replace(".lora_A.default.weight", " a")
        .replace(".lora_B.default.weight", " b"): parameter.detach().numpy()
        for name, parameter in model.named_parameters()
        if "lora_" in name
    }
    answers = {"plain": plain, "peft": logits(model, batch), **batch, **adapters}
    answers["double"] = logits(model.double(), batch)
    np.savez(os.path.join(folder, "answers.npz"), **answers)
    print(
        f"peft {peft.__version__}, transformers {transformers.__version__}, torch "
        f"{torch.__version__}; {len(adapters) // 2} adapters"
    )


def merged(folder):
    """Writes the logits of an export."""
    import transformers

    path = os.path.join(folder, "merged")
    model = transformers.T5ForConditionalGeneration.from_pretrained(path).eval()
    found = logits(model, np.load(os.path.join(folder, "answers.npz")))
    np.savez(os.path.join(folder, "merged.npz"), logits=found)


if __name__ == "__main__":
    if sys.argv[2] == "merged":
        merged(sys.argv[1])
    else:
        make(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
