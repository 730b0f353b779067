"""Generates the sentences and logical forms of `mini_cogs`.

A logical form has a frame for each common noun and verb, in the order in which they
are mentioned: its words, a variable that counts the frames, and its roles.

    the pilot said that Mia found a drum near the tent
    the pilot x1 ; say x2 agent x1 content x3 ; find x3 agent Mia patient x4 ;
    a drum x4 near x5 ; the tent x5

A proper name is its own constant. No noun, verb or preposition occurs twice in a
sentence. Training never holds the combinations that `GEN_KINDS` lists; a sentence of
gen holds one of them. They follow the idea of COGS (Kim and Linzen, EMNLP 2020), with
words, grammar and notation of their own. Unlike there, most words that training keeps
from a role occur in it hundreds of times, not once.
"""

import random
from typing import NamedTuple

from remixer_tf.tasks.mini_cogs_lexicon import (
    ACTIVE_ONLY,
    DOUBLE_OBJECT_ONLY,
    FORMS,
    GEN_KINDS,
    INTRANSITIVE_ONLY,
    LONE_NAMES,
    LONE_NOUNS,
    NAMES,
    OBJECT_FORMS,
    OBJECT_NOUNS,
    PASSIVE_ONLY,
    PEOPLE,
    PREPOSITIONS,
    ROLES,
    SIMPLE_FORMS,
    SUBJECT_NOUNS,
    SUBJECTS,
    THINGS,
    TO_DATIVE_ONLY,
    Verb,
)

TRAIN_DEPTH = 2  # complement clauses inside each other, and modifiers likewise
DEPTH_WEIGHTS = (10, 5, 4)  # of depths 0, 1 and 2
MAX_WORDS = {"train": 10, "gen": 15}
MAX_VARIABLES = 5  # in training too, so every symbol of gen is known from there


class NounPhrase(NamedTuple):
    noun: str
    determiner: str = ""  # none before a proper name
    preposition: str = ""
    place: "NounPhrase | None" = None


class Clause(NamedTuple):
    form: str
    verb: Verb
    arguments: dict  # role -> NounPhrase, or the Clause that is the content


class Example(NamedTuple):
    sentence: str
    logical_form: str
    type: str


def render(clause):
    """Returns a clause's sentence and logical form, two strings."""
    words, mentioned = [], []

    def say(node):
        if isinstance(node, Clause):
            for part in FORMS[node.form].surface.split():
                if part == "VERB":
                    words.append(node.verb.past)
                    mentioned.append(node)
                elif part in ROLES:
                    say(node.arguments[part])
                else:
                    words.append(part)
        elif not node.determiner:
            words.append(node.noun)
        else:
            words.extend([node.determiner, node.noun])
            mentioned.append(node)
            if node.place:
                words.append(node.preposition)
                say(node.place)

    say(clause)
    variable = {id(node): f"x{i}" for i, node in enumerate(mentioned, start=1)}

    def frame(node):
        if isinstance(node, NounPhrase):
            symbols = [node.determiner, node.noun, variable[id(node)]]
            if node.place:
                symbols += [node.preposition, variable[id(node.place)]]
            return symbols
        symbols = [node.verb.lemma, variable[id(node)]]
        for role in ROLES:
            if role in node.arguments:
                argument = node.arguments[role]
                symbols += [role, variable.get(id(argument)) or argument.noun]
        return symbols

    return " ".join(words), " ; ".join(" ".join(frame(node)) for node in mentioned)


class Sampler:
    """Draws clauses: by default what training allows, with `fixed` parts on request."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def noun_phrase(self, nouns, modifiers=0):
        """A noun phrase with a chain of `modifiers`; a name takes none of them."""
        noun = self.random.choice(nouns)
        if noun in NAMES or noun in LONE_NAMES:
            return NounPhrase(noun)
        determiner = self.random.choice(("the", "a"))
        if not modifiers:
            return NounPhrase(noun, determiner)
        place = self.noun_phrase(THINGS, modifiers - 1)
        return NounPhrase(noun, determiner, self.random.choice(PREPOSITIONS), place)

    def clause(self, forms=SIMPLE_FORMS, verbs=None, modifiers=None, **fixed):
        """A clause of one of `forms`, without a complement clause of its own.

        Args:
            forms: names in `FORMS`.
            verbs: instead of the form's own.
            modifiers: length of the chain at the last noun if that is not the
                subject; None draws it as in training: 0, 1 or 2.
            **fixed: role=NounPhrase or role=Clause, instead of a drawn one.
        """
        weights = [FORMS[name].weight for name in forms]
        name = self.random.choices(forms, weights)[0]
        form = FORMS[name]
        last = form.surface.split()[-1]
        arguments = {role: self.noun_phrase(form.nouns[role]) for role in form.nouns}
        if modifiers is None:
            modifiers = self.random.choices(range(TRAIN_DEPTH + 1), DEPTH_WEIGHTS)[0]
        if modifiers and name in OBJECT_FORMS:
            nouns = _without_names(form.nouns[last])
            arguments[last] = self.noun_phrase(nouns, modifiers)
        verb = self.random.choice(verbs or form.verbs)
        return Clause(name, verb, {**arguments, **fixed})

    def inside_complements(self, clause, depth, nouns=SUBJECTS):
        """`clause` inside `depth` clauses of saying and thinking by `nouns`."""
        for _ in range(depth):
            agent = self.noun_phrase(nouns)
            clause = self.clause(["complement"], content=clause, agent=agent)
        return clause

    def training_clause(self):
        depth = self.random.choices(range(TRAIN_DEPTH + 1), DEPTH_WEIGHTS)[0]
        return self.inside_complements(self.clause(), depth)

    def gen_clause(self, kind):
        """A clause with the combination that training lacks, and nothing else new."""
        acting = ["active", "causative", "unergative"]
        return {
            "subject_noun_as_object": lambda: self.clause(
                ["active"], patient=self.noun_phrase(SUBJECT_NOUNS)
            ),
            "object_noun_as_subject": lambda: self.clause(
                acting, agent=self.noun_phrase(OBJECT_NOUNS)
            ),
            "lone_noun_as_object": lambda: self.clause(
                ["active"], patient=self.noun_phrase(LONE_NOUNS)
            ),
            "lone_name_as_subject": lambda: self.clause(
                acting, agent=self.noun_phrase(LONE_NAMES)
            ),
            "active_verb_in_passive": lambda: self.clause(
                ["passive", "short_passive"], ACTIVE_ONLY
            ),
            "passive_verb_in_active": lambda: self.clause(["active"], PASSIVE_ONLY),
            "intransitive_verb_in_causative": lambda: self.clause(
                ["causative"], INTRANSITIVE_ONLY
            ),
            "double_object_verb_in_to_dative": lambda: self.clause(
                ["to_dative"], DOUBLE_OBJECT_ONLY
            ),
            "to_dative_verb_in_double_object": lambda: self.clause(
                ["double_object"], TO_DATIVE_ONLY
            ),
            "deeper_complement": lambda: self.inside_complements(
                self.clause(modifiers=0), TRAIN_DEPTH + 1, NAMES
            ),
            "longer_modifier": lambda: self.clause(
                OBJECT_FORMS, modifiers=TRAIN_DEPTH + 1
            ),
            "modified_subject": lambda: self.with_modified_subject(self.clause()),
        }[kind]()

    def with_modified_subject(self, clause):
        """`clause` with a new subject, a common noun with one modifier."""
        form = FORMS[clause.form]
        subject = form.surface.split()[0]
        phrase = self.noun_phrase(_without_names(form.nouns[subject]), modifiers=1)
        return clause._replace(arguments={**clause.arguments, subject: phrase})


def _without_names(nouns):
    return [noun for noun in nouns if noun not in NAMES]


# The words that may occur more than once in a sentence.
_REPEATED = {"the", "a", "that", "was", "by", "to"}
_LONE_WORDS = sorted(
    {*PEOPLE, *THINGS, *SUBJECT_NOUNS, *OBJECT_NOUNS, *LONE_NOUNS, *LONE_NAMES}
)


def _fits(sentence, logical_form, max_words):
    words = sentence.split()
    content = [word for word in words if word not in _REPEATED]
    return (
        len(words) <= max_words
        and len(set(content)) == len(content)
        and f"x{MAX_VARIABLES + 1}" not in logical_form.split()
    )


def _draw(draw, count, max_words, seen):
    """Draws `count` (sentence, logical form) pairs not yet `seen`, and adds them."""
    pairs = []
    while len(pairs) < count:
        pair = render(draw())
        if pair[0] not in seen and _fits(*pair, max_words):
            seen.add(pair[0])
            pairs.append(pair)
    return pairs


def generate(seed=0, sizes=(16_000, 500, 500), gen_size=150, lone_copies=20):
    """Makes the four splits; no sentence is in two. Equal arguments make equal ones.

    Args:
        seed: int.
        sizes: numbers of different sentences in train, dev and test.
        gen_size: number of sentences of each kind in gen.
        lone_copies: how often train repeats each noun and name standing by itself.

    Returns:
        dictionary of lists of `Example`: train, dev, test and gen. The type is
        "in_distribution", "lone_word" (in train only), or one of `GEN_KINDS`.
    """
    sampler, seen = Sampler(seed), set()
    pairs = _draw(sampler.training_clause, sum(sizes), MAX_WORDS["train"], seen)
    examples = [Example(*pair, "in_distribution") for pair in pairs]
    train, dev = sizes[0], sizes[0] + sizes[1]
    lone = [Example(word, word, "lone_word") for word in _LONE_WORDS] * lone_copies
    splits = {
        "train": examples[:train] + lone,
        "dev": examples[train:dev],
        "test": examples[dev:],
        "gen": [
            Example(*pair, kind)
            for kind in GEN_KINDS
            for pair in _draw(
                lambda kind=kind: sampler.gen_clause(kind),
                gen_size,
                MAX_WORDS["gen"],
                seen,
            )
        ],
    }
    sampler.random.shuffle(splits["train"])
    return splits
