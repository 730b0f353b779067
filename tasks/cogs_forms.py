"""COGS's logical forms without variables.

COGS numbers what a sentence speaks of by the position of its word (Kim and Linzen
2020). Without variables, as Qiu et al. 2022 ("Improving Compositional Generalization
with Latent Structure and Data Augmentation") have it, what is spoken of stands where
it plays its role:

    The girl saw a cat on a mat .
    * girl ( x _ 1 ) ; see . agent ( x _ 2 , x _ 1 ) AND see . theme ( x _ 2 , x _ 4 )
        AND cat ( x _ 4 ) AND cat . nmod . on ( x _ 4 , x _ 7 ) AND mat ( x _ 7 )
    see ( agent = * girl , theme = cat ( nmod . on = mat ) )

Roles keep the order of the logical form. The one who does what an infinitive says is
written twice: want ( agent = girl , xcomp = sleep ( agent = girl ) ). Logical forms of
a single word have no numbers, and stay as they are (our choice). The tests have the
inverse, which shows that nothing is lost.
"""

import dataclasses
import re

from remixer_tf.errors import UserError


@dataclasses.dataclass
class Node:
    """A noun, a name or a verb, and what it governs: pairs of a role and a node."""

    word: str
    governed: list = dataclasses.field(default_factory=list)
    definite: bool = False

    def __str__(self):
        text = f"* {self.word}" if self.definite else self.word
        if not self.governed:
            return text
        return f"{text} ( {' , '.join(f'{r} = {node}' for r, node in self.governed)} )"


def to_variable_free(logical_form):
    """Writes a logical form, as in COGS's files, without variables.

    Raises:
        ValueError: it is no logical form of COGS.
    """
    if "x _" not in logical_form:
        return logical_form
    nodes, governed = {}, set()

    def node_of(variable, word=None):
        node = nodes.setdefault(variable, Node(variable))  # Names are their own.
        if word is not None:
            node.word = word
        return node

    for term in re.split(r" (?:;|AND) ", logical_form):
        if match := re.fullmatch(r"(\* )?(\S+) \( (x _ \d+) \)", term):
            star, word, variable = match.groups()
            node_of(variable, word).definite = star is not None
        elif match := re.fullmatch(
            r"(\S+) \. (.+) \( (x _ \d+) , (x _ \d+|[A-Z]\w*) \)", term
        ):
            word, role, variable, other = match.groups()
            node_of(variable, word).governed.append((role, node_of(other)))
            governed.add(other)
        else:
            raise UserError(
                "A logical form of COGS consists of terms such as 'see . agent ( x _ 1 "
                f", x _ 3 )'. Received: {term!r} in {logical_form!r}"
            )
    roots = [node for variable, node in nodes.items() if variable not in governed]
    if len(roots) != 1:
        raise UserError(
            "A logical form of COGS has one verb that no other governs. Received "
            f"{len(roots)} in {logical_form!r}"
        )
    return str(roots[0])
