"""The module `editdistance` on rapidfuzz, where the library of that name is missing.

seqio and t5 import editdistance, which has no wheel for Python 3.13 and would need a
compiler there. They call the two functions below.
"""


def distance(a, b):
    """Returns the Levenshtein distance, an int, of two strings or other sequences."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.distance(a, b)


eval = distance  # seqio's name for it
