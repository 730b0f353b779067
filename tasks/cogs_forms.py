"""COGS's logical forms without variables, and back.

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
a single word have no numbers, and stay as they are (our choice).
"""

import dataclasses
import re

from remixer_tf.errors import UserError

# The words of COGS that no variable stands for.
_FUNCTION_WORDS = frozenset("a the was by to that in on beside .".split())


@dataclasses.dataclass
class _Node:
    """A noun, a name or a verb, and what it governs: pairs of a role and a node."""

    word: str
    governed: list = dataclasses.field(default_factory=list)
    definite: bool = False
    position: int | None = None  # of its word in the sentence

    @property
    def is_verb(self):
        return any("nmod" not in role for role, _ in self.governed)

    @property
    def is_name(self):
        return self.word[0].isupper()

    @property
    def variable(self):
        return self.word if self.is_name else f"x _ {self.position}"

    def __str__(self):
        text = f"* {self.word}" if self.definite else self.word
        if not self.governed:
            return text
        return f"{text} ( {' , '.join(f'{r} = {node}' for r, node in self.governed)} )"


def to_variable_free(logical_form):
    """Writes a logical form of COGS without variables.

    Args:
        logical_form: str, as in COGS's files.

    Returns:
        str, its tokens separated by single spaces.

    Raises:
        ValueError: it is no logical form of COGS.
    """
    if "x _" not in logical_form:
        return logical_form
    nodes, governed = {}, set()

    def node_of(variable, word=None):
        node = nodes.setdefault(variable, _Node(variable))  # Names are their own.
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


def to_logical_form(variable_free, sentence):
    """Gives back the variables: the inverse of `to_variable_free`.

    A variable's number is the position of its word. Nouns and names are looked for in
    the order of the form; what else the sentence has are its verbs, in their order.

    Args:
        variable_free: str.
        sentence: str, of COGS, its words separated by spaces.

    Returns:
        str, the logical form as COGS writes it.

    Raises:
        ValueError: the form cannot be read, or is not one of this sentence.
    """
    if " = " not in variable_free:
        return variable_free
    root = _parse(variable_free)
    words = sentence.lower().split()
    left = [i for i, word in enumerate(words) if word not in _FUNCTION_WORDS]
    entities, verbs = _in_order(root)
    start = 0
    for node in entities:
        found = [i for i in left if i >= start and words[i] == node.word.lower()]
        if not found:
            raise UserError(f"{sentence!r} has no {node.word!r} from word {start} on.")
        node.position = found[0]
        left.remove(found[0])
        start = found[0] + 1
    if len(left) != len(verbs):
        raise UserError(
            f"{variable_free!r} has {len(verbs)} verbs; beside its nouns {sentence!r} "
            f"has {[words[i] for i in left]}."
        )
    for node, position in zip(verbs, left, strict=True):
        node.position = position
    nouns = [node for node in entities if not node.is_name]
    head = [f"* {n.word} ( {n.variable} ) ;" for n in nouns if n.definite]
    body = [(n.position, f"{n.word} ( {n.variable} )") for n in nouns if not n.definite]
    body += [
        (node.position, f"{node.word} . {role} ( {node.variable} , {other.variable} )")
        for node in (*nouns, *verbs)
        for role, other in node.governed
    ]
    body.sort(key=lambda term: term[0])  # Stable: a noun stands before what it governs.
    return " ".join([*head, " AND ".join(text for _, text in body)])


def _in_order(root):
    """Nouns and names, and verbs, in the order of the sentence."""
    entities, verbs = [], []

    def visit(node, subject=None):
        if not node.is_verb:
            entities.append(node)
        else:
            verbs.append(node)
            if subject is not None:  # an infinitive's, which its verb has named
                node.governed = [
                    (role, subject if role == "agent" else other)
                    for role, other in node.governed
                ]
        for role, other in node.governed:
            if other is not subject:
                agent = dict(node.governed).get("agent") if role == "xcomp" else None
                visit(other, agent)

    visit(root)
    return entities, verbs


def _parse(text):
    tokens = text.split()

    def take(expected=None):
        token = tokens.pop(0) if tokens else None
        if token is None or expected is not None and token != expected:
            raise UserError(
                f"{text!r} cannot be read: expected {expected or 'a word'}, received "
                f"{token!r} before {' '.join(tokens)!r}."
            )
        return token

    def node():
        word = take()
        definite = word == "*"
        found = _Node(take() if definite else word, definite=definite)
        if tokens[:1] == ["("]:
            separator = take("(")
            while separator != ")":
                role = [take()]
                while tokens[:1] != ["="]:
                    role.append(take())
                take("=")
                found.governed.append((" ".join(role), node()))
                separator = take(")" if tokens[:1] != [","] else ",")
        return found

    found = node()
    if tokens:
        raise UserError(f"{text!r} goes on after its end: {' '.join(tokens)!r}.")
    return found
