"""Compares imported and exported weights with transformers and timm themselves.

    python -m benchmarks.parity [--reference_python=PYTHON]

PYTHON belongs to an environment with torch, transformers and timm, made for instance by

    python3 -m venv reference && reference/bin/pip install torch transformers timm

Each model is made with random weights by its own library, imported, and asked the same;
the T5s are exported again and loaded by transformers. Distances are the largest of all
logits, from the same model computed in float64, over their standard deviation.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

from benchmarks.measure import print_header, print_row

MODELS = (
    "t5_1_1",
    "t5_1_0",
    "byt5",
    "mt5",
    "umt5",
    "t5_1_1_encoder",
    "umt5_encoder",
    "BertModel",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertForQuestionAnswering",
    "gmlp_s16_224",
    "mixer_s32_224",
    "resmlp_12_224",
    "deit_tiny_patch16_224",
    "vit_small_patch32_224",
)
_NOT_WRITTEN = ("umt5",)  # no T5 of transformers holds it
_REFERENCE = os.path.join(os.path.dirname(__file__), "parity_reference.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reference_python", default=sys.executable)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()

    def reference(*arguments):
        return subprocess.run(
            [options.reference_python, _REFERENCE, *arguments],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    print(reference("versions", "").strip())
    print()
    print_header(
        "model",
        "parameters (M)",
        "theirs, float32",
        "ours",
        "exported again, theirs",
        "greedy tokens equal",
        "of 4 beams",
        "their scores differ by",
        "by its generation_config.json",
        "of the export's",
    )
    for name in options.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            print_row(*_row(name, folder, reference))


def _row(name, folder, reference):
    published = os.path.join(folder, "published")
    run = os.path.join(folder, "run")
    reference(name, published)
    answers = np.load(os.path.join(published, "answers.npz"))
    model, settings = _imported(published, run, "inputs" in answers)
    double = answers["double"]

    def distance(logits):
        return f"{np.abs(logits - double).max() / double.std():.1e}"

    columns = ["-"] * 6
    if "greedy" in answers:
        batch = {"encoder_input_tokens": answers["inputs"].astype("int32")}
        columns = _decoded(model, settings, batch, answers)
        batch["decoder_input_tokens"] = answers["start"].astype("int32")
        logits = np.array(model(batch))
        written = ["-", "-"]
        if name not in _NOT_WRITTEN:
            again = _exported_again(run, reference)
            written = (
                distance(again["single"]),
                _share(again["asked"], answers["asked"]),
            )
        columns = [written[0], *columns, written[1]]
    elif "inputs" in answers:
        batch = {"encoder_input_tokens": answers["inputs"].astype("int32")}
        if "types" in answers:
            batch["encoder_token_types"] = answers["types"].astype("int32")
            _check_wordpiece(published)
        is_head = name.startswith("BertFor")
        logits = np.array(model(batch) if is_head else model.encode(batch)[0])
        if logits.shape[1] == answers["inputs"].shape[1]:
            logits = logits * (answers["inputs"] != 0)[..., None]
        elif logits.shape[1] == 2:  # of a span
            logits = logits * (answers["inputs"] != 0)[:, None]
    else:
        logits = model({"images": answers["images"].transpose(0, 2, 3, 1)})
        logits = np.array(logits)[:, 0]
        again = _exported_again(run, reference, "timm", answers["images"])
        columns[0] = distance(again["single"])
    size = f"{model.count_params() / 1e6:.2f}"
    return name, size, distance(answers["single"]), distance(logits), *columns


def _check_wordpiece(folder):
    """Raises ValueError unless texts have transformers' ids."""
    from remixer_tf.data.wordpiece import wordpiece_vocabulary

    with open(os.path.join(folder, "texts.json")) as file:
        texts = json.load(file)
    for lower, name in ((True, "lower"), (False, "cased")):
        vocabulary = wordpiece_vocabulary(os.path.join(folder, "vocab.txt"), lower)
        for text, expected in zip(texts["texts"], texts[name], strict=True):
            if (ids := vocabulary.encode(text)) != expected:
                raise ValueError(f"{name} {text!r}: {ids}, transformers {expected}")


def _decoded(model, settings, batch, answers):
    """How much of what transformers decodes is decoded here."""
    from remixer_tf.decoding import HuggingFaceRules, beam_search, greedy_decode
    from remixer_tf.serving.text_to_text import text_to_text

    length = answers["greedy"].shape[1]
    greedy = greedy_decode(model, batch, length).tokens
    rules = HuggingFaceRules()
    beams = beam_search(model, batch, length, rules)
    lengths = np.count_nonzero(answers["beams"], axis=1)
    scores = np.array(rules.rank(beams.scores[:, None], lengths))[:, 0]
    search = settings.value(text_to_text, "decode_fn")
    longest = settings.value(text_to_text, "max_length")
    asked = search(model, batch, longest)
    return [
        _share(greedy, answers["greedy"]),
        _share(beams.tokens, answers["beams"]),
        f"{np.abs(scores - answers['scores']).max():.1e}",
        _share(asked.tokens, answers["asked"]),
    ]


def _share(ours, theirs):
    return f"{(np.array(ours) == theirs).mean():.0%}"


def _imported(published, run, reads_text):
    """The model of an imported run, as any reader of runs restores it."""
    from remixer_tf import configuration
    from remixer_tf.checkpoints.reading import restore_model
    from remixer_tf.commands import run_command
    from remixer_tf.models.build import build_model
    from remixer_tf.run import Run

    arguments = [f"--from={published}", f"--model_dir={run}"]
    own_tokenizer = os.path.exists(os.path.join(published, "tokenizer_config.json"))
    own_tokenizer |= os.path.exists(os.path.join(published, "vocab.txt"))
    if reads_text and not own_tokenizer:
        arguments += [
            "--gin.VOCABULARY=@byte_vocabulary()",
            "--gin.VOCABULARY_FILE=None",
        ]
    with contextlib.redirect_stdout(None):
        run_command("import_weights", arguments)
    settings = configuration.read([os.path.join(run, "operative_config.gin")], [])
    model = build_model(settings.value(Run, "model"), "float32")
    restore_model(run, model)
    return model, settings


def _exported_again(run, reference, format="huggingface", images=None):
    """The answers of transformers or timm with the export of a run."""
    from remixer_tf.commands import run_command

    with contextlib.redirect_stdout(None):
        run_command("export", [f"--model_dir={run}", f"--format={format}"])
    folder = os.path.join(run, format, "0")
    if images is not None:
        np.save(os.path.join(folder, "images.npy"), images)
    reference("again" if images is None else "images_again", folder)
    return np.load(os.path.join(folder, "answers.npz"))


if __name__ == "__main__":
    main()
