"""Trains a SentencePiece vocabulary on the text of a registered task.

    python -m remixer_tf.train_vocabulary --task=mini_cogs --model_type=word \
        --output=/tmp/mini_cogs.model

The ids are T5's: pad 0, EOS 1, unknown 2, no BOS.
"""

import importlib
import sys

from absl import app, flags

from remixer_tf.data.vocabulary_training import (
    MODEL_TYPES,
    read_texts,
    train_vocabulary,
)


def main(argv):
    if argv[1:]:
        raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}.")
    args = flags.FLAGS
    for module in ["remixer_tf.tasks", *args.modules]:
        importlib.import_module(module)
    try:
        texts = read_texts(args.task, args.split, args.features, args.num_examples)
        vocabulary = train_vocabulary(
            texts, args.output, args.vocab_size, args.model_type,
            args.character_coverage,
        )  # fmt: skip
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"Error: {error}")
    print(f"{args.output}: {vocabulary.vocab_size} pieces, {args.model_type}")
    for i, feature in enumerate(args.features):
        tokens = [len(vocabulary.encode(t)) + 1 for t in texts[i :: len(args.features)]]
        print(
            f"{feature}: {len(tokens)} texts, {sum(tokens) / len(tokens):.1f} tokens "
            f"on average with EOS, at most {max(tokens)}"
        )


def define_flags():
    flags.DEFINE_string("task", None, "Registered task or mixture.", required=True)
    flags.DEFINE_string("output", None, "File to write.", required=True)
    flags.DEFINE_integer(
        "vocab_size", None, "Pieces, with pad, EOS and unknown. word: all if left out."
    )
    flags.DEFINE_enum("model_type", "unigram", MODEL_TYPES, "Kind of pieces.")
    flags.DEFINE_string("split", "train", "Split whose text is read.")
    flags.DEFINE_list("features", ["inputs", "targets"], "Features to read.")
    flags.DEFINE_integer("num_examples", None, "Only the first of each task.")
    flags.DEFINE_float("character_coverage", 1.0, "Share of characters with a piece.")
    flags.DEFINE_list("modules", [], "Modules to import that register other tasks.")


if __name__ == "__main__":
    define_flags()
    app.run(main)
