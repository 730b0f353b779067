"""COGS's logical forms without variables.

COGS numbers things and events by the position of their words (Kim and Linzen 2020).
Without variables, as in Qiu et al. 2022 ("Improving Compositional Generalization with
Latent Structure and Data Augmentation"), each stands where it plays its role:

    The girl saw a cat on a mat .
    * girl ( x _ 1 ) ; see . agent ( x _ 2 , x _ 1 ) AND see . theme ( x _ 2 , x _ 4 )
        AND cat ( x _ 4 ) AND cat . nmod . on ( x _ 4 , x _ 7 ) AND mat ( x _ 7 )
    see ( agent = * girl , theme = cat ( nmod . on = mat ) )

Roles keep the order of the logical form. The agent of an infinitive is written twice:
want ( agent = girl , xcomp = sleep ( agent = girl ) ). Logical forms of a single word
have no numbers, and stay as they are (our choice). Nothing is lost: the tests have the
inverse.
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

    Raises a ValueError if it is no logical form of COGS.
    """
    if "x _" not in logical_form:
        return logical_form
    nodes, governed = {}, set()
    for term in re.split(r" (?:;|AND) ", logical_form):
        noun = re.fullmatch(r"(\* )?(\S+) \( (x _ \d+) \)", term)
        role = re.fullmatch(r"(\S+) \. (.+) \( (x _ \d+) , (x _ \d+|[A-Z]\w*) \)", term)
        if not noun and not role:
            raise UserError(
                "A logical form of COGS consists of terms such as 'see . agent ( x _ 1 "
                f", x _ 3 )'. Received: {term!r} in {logical_form!r}"
            )
        variable = (noun or role)[3]
        node = nodes.setdefault(variable, Node(variable))
        if noun:
            node.word, node.definite = noun[2], noun[1] is not None
        else:
            node.word = role[1]
            other = nodes.setdefault(role[4], Node(role[4]))  # Names are their own.
            node.governed.append((role[2], other))
            governed.add(role[4])
    roots = [node for variable, node in nodes.items() if variable not in governed]
    if len(roots) != 1:
        raise UserError(
            "A logical form of COGS has one verb that no other governs. Received "
            f"{len(roots)} in {logical_form!r}"
        )
    return str(roots[0])
