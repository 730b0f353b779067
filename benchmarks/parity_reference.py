"""Answers of transformers and timm: `benchmarks.parity` runs it in their environment.

It imports nothing of this project, which need not be installed there.
"""

import json
import os
import sys

import numpy as np
import torch

TOKENS = 24  # decoded
# Of T5.1.1 small's width. The vocabularies are the published models'.
T5 = {
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_decoder_layers": 6,
    "num_heads": 6,
    "vocab_size": 32128,
    "decoder_start_token_id": 0,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
SMALL = {
    "d_model": 128,
    "d_kv": 32,
    "d_ff": 256,
    "num_layers": 4,
    "num_decoder_layers": 3,
    "num_heads": 4,
}
# A model: transformers' class of it, and values of its configuration.
T5_MODELS = {
    "t5_1_1": ("T5", GATED),
    "t5_1_0": ("T5", {}),
    "byt5": ("T5", GATED | {"vocab_size": 384, "num_decoder_layers": 4}),
    "mt5": ("MT5", GATED | SMALL | {"vocab_size": 250112}),
    "umt5": ("UMT5", GATED | SMALL | {"vocab_size": 256384}),
}
BERT = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
BERT_HEADS = ("BertModel", "BertForMaskedLM", "BertForSequenceClassification")
BERT_HEADS += ("BertForQuestionAnswering",)
TEXTS = [
    "The quick brown fox, and 'quotes': unbelievable!",
    "Ünïcödé ÀCCENTS straße İstanbul ﬁne",
    "ΟΔΟΣ Οδός",
    "中文 and 日本語 mixed한국어",
    "tabs\tand\nlines\r\n \u00a0 \u200b\u00ad\ufffd\x00 end",
    "e-mail@example.com $5.00 50% a/b [sep] 😀👍🏽",
    "x" * 99 + " " + "x" * 101,
    "",
]
ENCODERS = {
    "t5_1_1_encoder": ("T5EncoderModel", T5 | GATED),
    "umt5_encoder": ("UMT5EncoderModel", T5 | GATED),
}
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


def t5(folder, name):
    """Writes a random T5, or a relative of it, and what it answers."""
    import transformers

    kind, config = T5_MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**{**T5, **config})
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    if name != "t5_1_0":
        # transformers 5 ties them in memory whatever the configuration says.
        model.lm_head.weight = torch.nn.Parameter(
            torch.randn_like(model.lm_head.weight) * config.d_model**-0.5
        )
        model.config.tie_word_embeddings = False
    spread_biases(model)
    for name_, value in SETTINGS.items():
        setattr(model.generation_config, name_, value)
    model.save_pretrained(folder, max_shard_size="50MB")
    if name == "byt5":
        transformers.ByT5Tokenizer().save_pretrained(folder)
    answer_t5(model, folder)


def spread_biases(model):
    """Position biases as large as trained ones, so that a wrong one shows."""
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            parameter.data.normal_()


def encoder(folder, name):
    """Writes a random encoder, and its output at the tokens that are there."""
    import transformers

    kind, config = ENCODERS[name]
    config_class = getattr(transformers, kind).config_class
    model = getattr(transformers, kind)(config_class(**config)).eval()
    spread_biases(model)
    model.save_pretrained(folder)
    inputs, _ = examples(model.config.vocab_size)
    ids, mask = torch.tensor(inputs), torch.tensor(inputs != 0)

    def output(model):
        found = model(input_ids=ids, attention_mask=mask)[0]
        return (found * mask[..., None]).numpy()

    with torch.no_grad():
        single = output(model)
        double = output(_in_float64(model))
    path = os.path.join(folder, "answers.npz")
    np.savez(path, inputs=inputs, single=single, double=double)


def bert(folder, name):
    """Writes a random BERT with a vocabulary, its logits, and the ids of texts."""
    import transformers

    labels = 3 if name == "BertForSequenceClassification" else 2
    config = transformers.BertConfig(**BERT, num_labels=labels)
    model = getattr(transformers, name)(config).eval()
    for parameter in model.parameters():  # norms and biases too
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "un", "##able"]
    letters = sorted({c for c in "".join(TEXTS).lower() if c.isprintable()} - {" "})
    letters += [c for c in "ucodeaistrf" if c not in letters]
    pieces += letters[:-3] + [f"##{c}" for c in letters[3:]]  # some are missing
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
        file.writelines(f"{piece}\n" for piece in pieces)
    ids = {}
    for lower in (True, False):
        tokenizer = transformers.BertTokenizer(
            os.path.join(folder, "vocab.txt"), do_lower_case=lower
        )
        ids[lower] = [tokenizer(text)["input_ids"][1:-1] for text in TEXTS]
    with open(os.path.join(folder, "texts.json"), "w") as file:
        json.dump({"texts": TEXTS, "lower": ids[True], "cased": ids[False]}, file)
    inputs, _ = examples(BERT["vocab_size"])
    types = np.where(inputs != 0, np.arange(inputs.shape[1]) > 60, 0).astype("int64")
    given = {"input_ids": inputs, "attention_mask": inputs != 0}
    given = {k: torch.tensor(x) for k, x in {**given, "token_type_ids": types}.items()}

    def output(model):
        found = model(**given)
        if name == "BertForQuestionAnswering":
            found = torch.stack([found.start_logits, found.end_logits], 1)
            return (found * given["attention_mask"][:, None]).numpy()
        if name == "BertForSequenceClassification":
            return found.logits[:, None].numpy()
        return (found[0] * given["attention_mask"][..., None]).numpy()

    with torch.no_grad():
        single = output(model)
        double = output(model.double())
    path = os.path.join(folder, "answers.npz")
    np.savez(path, inputs=inputs, types=types, single=single, double=double)


def examples(vocab_size):
    """Inputs `[4, 150]`, two of them padded, and targets `[4, 40]`."""
    last = vocab_size - 1
    inputs = np.random.default_rng(0).integers(2, last, (4, 150))
    targets = np.random.default_rng(1).integers(2, last, (4, 40))
    inputs[1, 90:] = inputs[2, 11:] = 0
    return inputs, targets


def answer_t5(model, folder):
    """Writes logits in float32 and float64, and tokens decoded, to answers.npz."""
    from transformers import GenerationConfig

    inputs, targets = examples(model.config.vocab_size)
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
    """The generated tokens, without the start, `[batch, TOKENS]`; 0 after EOS."""
    tokens = sequences[:, 1:].numpy()
    is_end = tokens == 1
    tokens = np.where(np.cumsum(is_end, axis=1) - is_end > 0, 0, tokens)
    return np.pad(tokens, [(0, 0), (0, TOKENS - tokens.shape[1])])


def _in_float64(model):
    """The model in float64, its norms' statistics too."""

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x * scale

    for module in model.modules():
        if type(module).__name__ in ("T5LayerNorm", "MT5LayerNorm", "UMT5LayerNorm"):
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


def images_again(folder):
    """Answers with an image model that this project has written."""
    import timm

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    x = torch.from_numpy(np.load(os.path.join(folder, "images.npy")))
    with torch.no_grad():
        single = model(x).numpy()
    np.savez(os.path.join(folder, "answers.npz"), single=single)


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
    if kind in T5_MODELS:
        t5(folder, kind)
    elif kind in BERT_HEADS:
        bert(folder, kind)
    elif kind in ENCODERS:
        encoder(folder, kind)
    elif kind == "again":
        again(folder)
    elif kind == "images_again":
        images_again(folder)
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
