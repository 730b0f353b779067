"""The task `mini_cogs`: sentence to logical form, on generated sentences.

It needs no file: a process generates the splits train, dev, test and gen in about a
second, when it first reads one. The metric is exact match after whitespace
normalisation: overall, by type, and over the lexical and the structural types of gen.

A logical form has a frame for each common noun and verb, in the order in which they
are mentioned: its words, a variable that counts the frames, and its roles.

    the pilot said that Mia found a drum near the tent
    the pilot x1 ; say x2 agent x1 content x3 ; find x3 agent Mia patient x4 ;
    a drum x4 near x5 ; the tent x5

A proper name is its own constant. No noun, verb or preposition occurs twice in a
sentence. Training never holds the combinations in `GEN_KINDS`; a sentence of gen holds
one of them. The idea is that of COGS (Kim and Linzen, EMNLP 2020); words, grammar and
notation are new. Unlike in COGS, most words that training keeps from a role occur in it
hundreds of times, not once.
"""

import functools
import random
from typing import NamedTuple

from remixer_tf.arguments import Integer, NonNegativeInt, checked
from remixer_tf.errors import UserError, check_integers
from remixer_tf.tasks import rows
from remixer_tf.tasks.text_metrics import LEXICAL, STRUCTURAL

ANIMATE = "teacher sailor farmer doctor girl boy dog horse rabbit parrot".split()
THINGS = "lamp drum kite ladder basket tent wagon statue carpet barrel".split()
NAMES = "Mia Leo Ana Omar Ines Hugo".split()
PREPOSITIONS = "near behind under beside above".split()
SUBJECT_NOUNS = "wolf pilot judge".split()  # in training only subjects
OBJECT_NOUNS = "kitten tailor beaver".split()  # in training only objects
LONE_NOUNS = "falcon baker gardener".split()  # in training only by themselves
LONE_NAMES = "Ravi Elsa Jonas".split()


class Verb(NamedTuple):
    past: str  # also the participle, if there is a passive
    lemma: str


def _verbs(text):
    return [Verb(*pair.split("/")) for pair in text.split()]


TRANSITIVE = _verbs(
    "chased/chase found/find painted/paint followed/follow pushed/push washed/wash "
    "lifted/lift watched/watch"
)
ACTIVE_ONLY = _verbs("praised/praise touched/touch caught/catch")
PASSIVE_ONLY = _verbs("scratched/scratch rescued/rescue noticed/notice")
PASSIVE = TRANSITIVE + PASSIVE_ONLY
CAUSATIVE = _verbs("cracked/crack melted/melt moved/move turned/turn")
INTRANSITIVE_ONLY = _verbs("rolled/roll bounced/bounce tilted/tilt")
UNACCUSATIVE = CAUSATIVE + INTRANSITIVE_ONLY
DATIVE = _verbs("gave/give sent/send showed/show sold/sell")
DOUBLE_OBJECT_ONLY = _verbs("lent/lend mailed/mail")
TO_DATIVE_ONLY = _verbs("passed/pass brought/bring")
UNERGATIVE = _verbs("slept/sleep laughed/laugh danced/dance waited/wait sneezed/sneeze")
SPEAKING = _verbs("said/say thought/think hoped/hope knew/know claimed/claim")


class Form(NamedTuple):
    """A clause type: its words with roles among them, and what fills it in training."""

    surface: str
    verbs: list
    nouns: dict  # role -> nouns; those of a role that can be a name include NAMES
    weight: int


PEOPLE = ANIMATE + NAMES
SUBJECTS = PEOPLE + SUBJECT_NOUNS
ANYTHING = PEOPLE + THINGS
_CAUSED = {"agent": SUBJECTS, "patient": THINGS}
_DONE = {"agent": SUBJECTS, "patient": ANYTHING + OBJECT_NOUNS}
_GIVEN = {**_CAUSED, "goal": PEOPLE}
_UNDERGONE = {"agent": PEOPLE, "patient": ANYTHING}
FORMS = {
    "unergative": Form("agent VERB", UNERGATIVE, {"agent": SUBJECTS}, 2),
    "unaccusative": Form("patient VERB", UNACCUSATIVE, {"patient": THINGS}, 3),
    "causative": Form("agent VERB patient", CAUSATIVE, _CAUSED, 3),
    "active": Form("agent VERB patient", TRANSITIVE + ACTIVE_ONLY, _DONE, 6),
    "passive": Form("patient was VERB by agent", PASSIVE, _UNDERGONE, 3),
    "short_passive": Form("patient was VERB", PASSIVE, {"patient": ANYTHING}, 2),
    "to_dative": Form("agent VERB patient to goal", DATIVE + TO_DATIVE_ONLY, _GIVEN, 3),
    "double_object": Form(
        "agent VERB goal patient", DATIVE + DOUBLE_OBJECT_ONLY, _GIVEN, 3
    ),
    "complement": Form("agent VERB that content", SPEAKING, {"agent": SUBJECTS}, 5),
}
ROLES = ("agent", "patient", "goal", "content")
SIMPLE_FORMS = [name for name in FORMS if name != "complement"]
OBJECT_FORMS = [
    name for name in SIMPLE_FORMS if FORMS[name].surface.split()[-1] in ROLES
]
ACTING = ["active", "causative", "unergative"]
# Gen tests what training lacks: a noun in a role of these forms, one of these verbs in
# these forms, and structures deeper or longer than in training.
NOUNS_IN_ROLES = {
    "subject_noun_as_object": (["active"], "patient", SUBJECT_NOUNS),
    "object_noun_as_subject": (ACTING, "agent", OBJECT_NOUNS),
    "lone_noun_as_object": (["active"], "patient", LONE_NOUNS),
    "lone_name_as_subject": (ACTING, "agent", LONE_NAMES),
}
VERBS_IN_FORMS = {
    "active_verb_in_passive": (["passive", "short_passive"], ACTIVE_ONLY),
    "passive_verb_in_active": (["active"], PASSIVE_ONLY),
    "intransitive_verb_in_causative": (["causative"], INTRANSITIVE_ONLY),
    "double_object_verb_in_to_dative": (["to_dative"], DOUBLE_OBJECT_ONLY),
    "to_dative_verb_in_double_object": (["double_object"], TO_DATIVE_ONLY),
}
STRUCTURES = ["deeper_complement", "longer_modifier", "modified_subject"]
GEN_KINDS = dict.fromkeys([*NOUNS_IN_ROLES, *VERBS_IN_FORMS], LEXICAL)
GEN_KINDS |= dict.fromkeys(STRUCTURES, STRUCTURAL)

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


def read_aloud(clause):
    """Returns a clause's words, and the nodes that get a variable, in their order."""
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
    return words, mentioned


def logical_form(mentioned):
    """Returns the logical form of the nodes that `read_aloud` returns, a string."""
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

    return " ; ".join(" ".join(frame(node)) for node in mentioned)


class Sampler:
    """Draws clauses as training allows them, or with parts that are `fixed`."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def depth(self):
        return self.random.choices(range(TRAIN_DEPTH + 1), DEPTH_WEIGHTS)[0]

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

    def common_noun(self, nouns, modifiers):
        return self.noun_phrase([x for x in nouns if x not in NAMES], modifiers)

    def clause(self, forms=SIMPLE_FORMS, verbs=None, modifiers=None, **fixed):
        """A clause of one of `forms`, without a complement clause of its own.

        `modifiers` is the length of the chain at the last noun unless that is the
        subject; None draws 0, 1 or 2 as in training. `fixed` are role=NounPhrase or
        role=Clause.
        """
        weights = [FORMS[name].weight for name in forms]
        name = self.random.choices(forms, weights)[0]
        form = FORMS[name]
        arguments = {role: self.noun_phrase(form.nouns[role]) for role in form.nouns}
        if modifiers is None:
            modifiers = self.depth()
        if modifiers and name in OBJECT_FORMS:
            last = form.surface.split()[-1]
            arguments[last] = self.common_noun(form.nouns[last], modifiers)
        verb = self.random.choice(verbs or form.verbs)
        return Clause(name, verb, {**arguments, **fixed})

    def inside_complements(self, clause, depth, nouns=SUBJECTS):
        """`clause` inside `depth` clauses of saying and thinking by `nouns`."""
        for _ in range(depth):
            agent = self.noun_phrase(nouns)
            clause = self.clause(["complement"], content=clause, agent=agent)
        return clause

    def training_clause(self):
        depth = self.depth()
        return self.inside_complements(self.clause(), depth)

    def gen_clause(self, kind):
        """A clause with the combination that training lacks, and nothing else new."""
        if kind in NOUNS_IN_ROLES:
            forms, role, nouns = NOUNS_IN_ROLES[kind]
            return self.clause(forms, **{role: self.noun_phrase(nouns)})
        if kind in VERBS_IN_FORMS:
            return self.clause(*VERBS_IN_FORMS[kind])
        if kind == "deeper_complement":
            clause = self.clause(modifiers=0)
            return self.inside_complements(clause, TRAIN_DEPTH + 1, NAMES)
        if kind == "longer_modifier":
            return self.clause(OBJECT_FORMS, modifiers=TRAIN_DEPTH + 1)
        clause = self.clause()
        form = FORMS[clause.form]
        subject = form.surface.split()[0]
        phrase = self.common_noun(form.nouns[subject], modifiers=1)
        return clause._replace(arguments={**clause.arguments, subject: phrase})


# The words that may occur more than once in a sentence.
_REPEATED = {"the", "a", "that", "was", "by", "to"}


def _draw(draw, count, max_words, seen):
    """Draws `count` (sentence, logical form) pairs not yet `seen`, and adds them."""
    pairs = []
    while len(pairs) < count:
        words, mentioned = read_aloud(draw())
        if len(words) > max_words or len(mentioned) > MAX_VARIABLES:
            continue
        content = [word for word in words if word not in _REPEATED]
        sentence = " ".join(words)
        if len(set(content)) == len(content) and sentence not in seen:
            seen.add(sentence)
            pairs.append((sentence, logical_form(mentioned)))
    return pairs


@checked
def generate(
    seed: Integer = 0,
    sizes=(16_000, 500, 500),
    gen_size: NonNegativeInt = 150,
    lone_copies: NonNegativeInt = 20,
):
    """Makes the four splits; no sentence is in two. Equal arguments make equal splits.

    `sizes` are the numbers of sentences in train, dev and test, `gen_size` that of each
    kind in gen. Train repeats each noun and name standing by itself `lone_copies`
    times. Returns dictionaries of lists of `Example`: train, dev, test and gen. The
    type is "in_distribution", "lone_word" (in train only), or one of `GEN_KINDS`.
    """
    if not isinstance(sizes, (list, tuple)) or len(sizes) != 3:
        raise UserError(
            "sizes must be the numbers of sentences in train, dev and test. Received: "
            f"sizes={sizes!r:.200}"
        )
    train, dev, test = sizes
    check_integers(0, train=train, dev=dev, test=test)
    sampler, seen = Sampler(seed), set()
    pairs = _draw(sampler.training_clause, sum(sizes), MAX_WORDS["train"], seen)
    examples = [Example(*pair, "in_distribution") for pair in pairs]
    dev += train
    lone = sorted({*SUBJECTS, *THINGS, *OBJECT_NOUNS, *LONE_NOUNS, *LONE_NAMES})
    lone = [Example(word, word, "lone_word") for word in lone]
    splits = {
        "train": examples[:train] + lone * lone_copies,
        "dev": examples[train:dev],
        "test": examples[dev:],
        "gen": [],
    }
    for kind in GEN_KINDS:
        draw = functools.partial(sampler.gen_clause, kind)
        pairs = _draw(draw, gen_size, MAX_WORDS["gen"], seen)
        splits["gen"] += [Example(*pair, kind) for pair in pairs]
    sampler.random.shuffle(splits["train"])
    return splits


_splits = functools.cache(generate)
rows.add_task(
    "mini_cogs",
    lambda split: _splits()[split],
    ("train", "dev", "test", "gen"),
    GEN_KINDS,
)
