"""What transformers and timm say: run by `benchmarks.parity`, in their environment.

It imports nothing of this project, which need not be installed there.
"""

import json
import os
import sys

import numpy as np
import torch

TOKENS = 24  # decoded
# Those that a published model may ask to be decoded with.
SETTINGS = {
    "num_beams": 3,
    "length_penalty": 0.7,
    "early_stopping": True,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.3,
    "min_length": 7,
    "max_new_tokens": TOKENS,
}


def t5(folder, **config):
    """Writes a random T5 of T5.1.1 small's size, and what it answers."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 1024,
        "num_layers": 8,
        "num_decoder_layers": 6,
        "num_heads": 6,
        "decoder_start_token_id": 0,
    }
    model = T5ForConditionalGeneration(T5Config(**sizes, **config))
    if not config.get("tie_word_embeddings", True):
        # transformers 5 ties them in memory whatever the configuration says.
        model.lm_head.weight = torch.nn.Parameter(
            torch.randn_like(model.lm_head.weight) * 512**-0.5
        )
        model.config.tie_word_embeddings = False
    for name, value in SETTINGS.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder, max_shard_size="50MB")
    answer_t5(model, folder)


def answer_t5(model, folder):
    """Writes logits in float32 and float64, and tokens decoded, to answers.npz."""
    from transformers import GenerationConfig

    inputs = np.random.default_rng(0).integers(2, 32000, (4, 150))
    targets = np.random.default_rng(1).integers(2, 32000, (4, 40))
    inputs[1, 90:] = inputs[2, 11:] = 0
    start = np.pad(targets, [(0, 0), (1, 0)])[:, :-1]
    model.eval()
    ids, mask = torch.tensor(inputs), torch.tensor(inputs != 0)

    def logits(model):
        return model(
            input_ids=ids, attention_mask=mask, decoder_input_ids=torch.tensor(start)
        ).logits.numpy()

    with torch.no_grad():
        single = logits(model)
        plain = {  # whatever the model is published with
            "early_stopping": False,
            "length_penalty": 1.0,
            "no_repeat_ngram_size": 0,
            "repetition_penalty": 1.0,
            "min_length": 0,
            "max_new_tokens": TOKENS,
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 0,
        }
        greedy, beams = (
            model.generate(
                ids,
                attention_mask=mask,
                generation_config=GenerationConfig(num_beams=number, **plain),
                output_scores=True,
                return_dict_in_generate=True,
            )
            for number in (1, 4)
        )
        asked = model.generate(ids, attention_mask=mask)
        double = logits(_in_float64(model))
    np.savez(
        os.path.join(folder, "answers.npz"),
        inputs=inputs,
        start=start,
        single=single,
        double=double,
        greedy=_tokens(greedy.sequences),
        asked=_tokens(asked),
        beams=_tokens(beams.sequences),
        scores=beams.sequences_scores.numpy(),
    )


def _tokens(sequences):
    """What was generated, without the start, `[batch, TOKENS]`."""
    tokens = sequences[:, 1:].numpy()
    return np.pad(tokens, [(0, 0), (0, TOKENS - tokens.shape[1])])


def _in_float64(model):
    """The model in float64, its norms' statistics too."""
    from transformers.models.t5 import modeling_t5

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x * scale

    for module in model.modules():
        if isinstance(module, modeling_t5.T5LayerNorm):
            module.forward = forward.__get__(module)
    return model.double()


def images(folder, name):
    """Writes a random image model of timm, and its logits."""
    import timm
    from safetensors.torch import save_file

    model = timm.create_model(name, pretrained=False).eval()
    for parameter in model.parameters():
        # Else gates and biases are where nothing shows: at one and at zero.
        parameter.data += 0.02 * torch.randn_like(parameter)
    os.makedirs(folder)
    save_file(model.state_dict(), os.path.join(folder, "model.safetensors"))
    config = {"architecture": name, "pretrained_cfg": model.pretrained_cfg}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, default=str)
    x = torch.randn(2, *model.pretrained_cfg["input_size"])
    with torch.no_grad():
        single = model(x).numpy()
        double = model.double()(x.double()).numpy()
    np.savez(
        os.path.join(folder, "answers.npz"),
        images=x.numpy(),
        single=single,
        double=double,
    )


def again(folder):
    """Answers with a T5 that this project has written."""
    from transformers import T5ForConditionalGeneration

    model, problems = T5ForConditionalGeneration.from_pretrained(
        folder, output_loading_info=True
    )
    if any(problems.values()):
        raise ValueError(f"transformers does not load all of {folder}: {problems}")
    answer_t5(model, folder)


def main(kind, folder):
    torch.manual_seed(0)
    if kind == "t5_1_1":
        t5(folder, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    elif kind == "t5_1_0":
        t5(folder)
    elif kind == "again":
        again(folder)
    elif kind == "versions":
        import timm
        import transformers

        print(
            f"transformers {transformers.__version__}, timm {timm.__version__}, "
            f"torch {torch.__version__}"
        )
    else:
        images(folder, kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
