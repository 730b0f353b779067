"""The inverse of `to_variable_free`: it shows that a form without variables has all."""

import dataclasses

from remixer_tf.tasks.cogs_forms import Node

# The words of COGS that no variable stands for.
_FUNCTION_WORDS = frozenset("a the was by to that in on beside .".split())


@dataclasses.dataclass
class _Node(Node):
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
            raise ValueError(f"{sentence!r} has no {node.word!r} from word {start} on.")
        node.position = found[0]
        left.remove(found[0])
        start = found[0] + 1
    if len(left) != len(verbs):
        raise ValueError(
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
            raise ValueError(
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
        raise ValueError(f"{text!r} goes on after its end: {' '.join(tokens)!r}.")
    return found
