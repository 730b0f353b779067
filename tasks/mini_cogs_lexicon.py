"""The words and clause types of `mini_cogs`, and what training holds of them."""

from typing import NamedTuple

from remixer_tf.tasks.metrics import LEXICAL, STRUCTURAL

# What training lacks and the generalisation set tests, and which kind it is.
GEN_KINDS = {
    "subject_noun_as_object": LEXICAL,
    "object_noun_as_subject": LEXICAL,
    "lone_noun_as_object": LEXICAL,
    "lone_name_as_subject": LEXICAL,
    "active_verb_in_passive": LEXICAL,
    "passive_verb_in_active": LEXICAL,
    "intransitive_verb_in_causative": LEXICAL,
    "double_object_verb_in_to_dative": LEXICAL,
    "to_dative_verb_in_double_object": LEXICAL,
    "deeper_complement": STRUCTURAL,
    "longer_modifier": STRUCTURAL,
    "modified_subject": STRUCTURAL,
}

ANIMATE = "teacher sailor farmer doctor girl boy dog horse rabbit parrot".split()
THINGS = "lamp drum kite ladder basket tent wagon statue carpet barrel".split()
NAMES = "Mia Leo Ana Omar Ines Hugo".split()
PREPOSITIONS = "near behind under beside above".split()
SUBJECT_NOUNS = "wolf pilot judge".split()  # in training only subjects
OBJECT_NOUNS = "kitten tailor beaver".split()  # in training only objects
LONE_NOUNS = "falcon baker gardener".split()  # in training only by themselves
LONE_NAMES = "Ravi Elsa Jonas".split()


class Verb(NamedTuple):
    past: str  # also the participle, where there is a passive
    lemma: str


def _verbs(text):
    return [Verb(*pair.split("/")) for pair in text.split()]


TRANSITIVE = _verbs(
    "chased/chase found/find painted/paint followed/follow pushed/push washed/wash "
    "lifted/lift watched/watch"
)
ACTIVE_ONLY = _verbs("praised/praise touched/touch caught/catch")
PASSIVE_ONLY = _verbs("scratched/scratch rescued/rescue noticed/notice")
CAUSATIVE = _verbs("cracked/crack melted/melt moved/move turned/turn")
INTRANSITIVE_ONLY = _verbs("rolled/roll bounced/bounce tilted/tilt")
DATIVE = _verbs("gave/give sent/send showed/show sold/sell")
DOUBLE_OBJECT_ONLY = _verbs("lent/lend mailed/mail")
TO_DATIVE_ONLY = _verbs("passed/pass brought/bring")
UNERGATIVE = _verbs("slept/sleep laughed/laugh danced/dance waited/wait sneezed/sneeze")
SPEAKING = _verbs("said/say thought/think hoped/hope knew/know claimed/claim")


class Form(NamedTuple):
    """A clause type: its words, roles among them, and what may fill it in training."""

    surface: str
    verbs: list
    nouns: dict  # role -> nouns; a role that can be a name has NAMES in it too
    weight: int


PEOPLE = ANIMATE + NAMES
SUBJECTS = PEOPLE + SUBJECT_NOUNS
FORMS = {
    "unergative": Form("agent VERB", UNERGATIVE, {"agent": SUBJECTS}, 2),
    "unaccusative": Form(
        "patient VERB", CAUSATIVE + INTRANSITIVE_ONLY, {"patient": THINGS}, 3
    ),
    "causative": Form(
        "agent VERB patient",
        CAUSATIVE,
        {"agent": SUBJECTS, "patient": THINGS},
        3,
    ),
    "active": Form(
        "agent VERB patient",
        TRANSITIVE + ACTIVE_ONLY,
        {"agent": SUBJECTS, "patient": PEOPLE + THINGS + OBJECT_NOUNS},
        6,
    ),
    "passive": Form(
        "patient was VERB by agent",
        TRANSITIVE + PASSIVE_ONLY,
        {"agent": PEOPLE, "patient": PEOPLE + THINGS},
        3,
    ),
    "short_passive": Form(
        "patient was VERB",
        TRANSITIVE + PASSIVE_ONLY,
        {"patient": PEOPLE + THINGS},
        2,
    ),
    "to_dative": Form(
        "agent VERB patient to goal",
        DATIVE + TO_DATIVE_ONLY,
        {"agent": SUBJECTS, "patient": THINGS, "goal": PEOPLE},
        3,
    ),
    "double_object": Form(
        "agent VERB goal patient",
        DATIVE + DOUBLE_OBJECT_ONLY,
        {"agent": SUBJECTS, "patient": THINGS, "goal": PEOPLE},
        3,
    ),
    "complement": Form("agent VERB that content", SPEAKING, {"agent": SUBJECTS}, 5),
}
ROLES = ("agent", "patient", "goal", "content")
SIMPLE_FORMS = [name for name in FORMS if name != "complement"]
OBJECT_FORMS = [
    name for name in SIMPLE_FORMS if FORMS[name].surface.split()[-1] in ROLES
]
