"""Trains a SentencePiece vocabulary.

The text is that of a registered task, or a sample of files: .txt, or tables with a
column of texts. A .txt file is cut at blank lines into texts of 10,000 characters and
more; without a blank line it is one text. Files are read one after the other, and only
the sample is held in memory. Rows without text are left out, and counted in a warning.
The ids are T5's: padding 0, EOS 1, unknown 2, no BOS.
"""

from remixer_tf import configuration
from remixer_tf.commands import add_number
from remixer_tf.errors import UserError


def add_arguments(parser):
    configuration.add_common(parser, run="optional")
    help = "registered task or mixture"
    parser.add_argument("--task", metavar="NAME", help=help)
    help = (
        "files in place of a task, such as 'web-*.jsonl.zst'; .txt files are cut at "
        "blank lines, as text tasks read them"
    )
    parser.add_argument("--input", metavar="FILES", help=help)
    help = "column with the texts of --input's tables (text)"
    parser.add_argument("--column", default="text", metavar="NAME", help=help)
    add_number(parser, "--seed", "draws the sample of --input (0)", least=0)
    parser.add_argument("--output", required=True, metavar="FILE", help="file to write")
    help = "pieces, with padding, EOS and unknown; word: all if not given"
    add_number(parser, "--vocab_size", help)
    help, kinds = "kind of pieces (unigram)", ("unigram", "bpe", "word")
    parser.add_argument("--model_type", default=kinds[0], choices=kinds, help=help)
    help = "split to read (train)"
    parser.add_argument("--split", default="train", metavar="NAME", help=help)
    help, both = "features to read (inputs,targets)", "inputs,targets"
    parser.add_argument("--features", default=both, metavar="P,Q", help=help)
    help = "only the first of each task; of --input a sample (1000000)"
    add_number(parser, "--num_examples", help)
    help = "share of characters with a piece (1.0)"
    name = "--character_coverage"
    parser.add_argument(name, type=float, default=1.0, metavar="X", help=help)


def run(options):
    configuration.read_configuration(options, complete=False)
    if (options.task is None) == (options.input is None):
        raise UserError("give --task or --input: the text to train on.")
    from remixer_tf.data.vocabulary_training import read_texts, train_vocabulary

    number = options.num_examples
    if options.input:
        from remixer_tf.tasks.text_files import sample_texts

        features, column = [options.column], options.column
        number = number or 1_000_000
        texts, total = sample_texts(options.input, number, options.seed or 0, column)
        print(f"{options.input}: {len(texts):,} of {total:,} texts")
    else:
        features = options.features.split(",")
        texts = read_texts(options.task, options.split, features, number)
    vocabulary = train_vocabulary(
        texts,
        options.output,
        options.vocab_size,
        options.model_type,
        options.character_coverage,
    )
    print(f"{options.output}: {vocabulary.vocab_size} pieces, {options.model_type}")
    for i, feature in enumerate(features):
        tokens = [len(vocabulary.encode(t)) + 1 for t in texts[i :: len(features)]]
        print(
            f"{feature}: {len(tokens)} texts, {sum(tokens) / len(tokens):.1f} tokens "
            f"on average with EOS, at most {max(tokens)}"
        )
