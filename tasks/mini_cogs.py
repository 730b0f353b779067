"""The task `mini_cogs`: sentence to logical form, on generated sentences.

The task that needs no file. `mini_cogs_grammar.py` makes the splits train, dev, test
and gen in about a second, when a split is first read; each process does so once. The
metric is exact match after whitespace normalisation: overall, by type, and over the
lexical and the structural types of gen.
"""

import functools

from remixer_tf.tasks import mini_cogs_grammar, mini_cogs_lexicon, rows

_splits = functools.cache(mini_cogs_grammar.generate)


def read_rows(split):
    """Returns the rows of a split: (sentence, logical form, type)."""
    return _splits()[split]


rows.add_task(
    "mini_cogs",
    read_rows,
    ("train", "dev", "test", "gen"),
    mini_cogs_lexicon.GEN_KINDS,
)
