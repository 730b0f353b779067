"""The splits do not overlap, and what gen tests is absent from training.

`parse` reads the frames of a logical form without the generator's help, and each kind
of combination is a question about frames, asked of training and of gen alike.
"""

import collections
import re

import numpy as np
import pytest
import seqio

from remixer_tf.tasks import mini_cogs as grammar
from remixer_tf.tasks.mini_cogs import GEN_KINDS

ROLES = {"agent", "patient", "goal", "content"}
# Results in the documentation hold for these sentences and those between them.
FIRST_TEST_EXAMPLE = (
    "the parrot sold Hugo a carpet",
    "the parrot x1 ; sell x2 agent x1 patient x3 goal Hugo ; a carpet x3",
    "in_distribution",
)
LAST_GEN_EXAMPLE = (
    "a drum beside a carpet moved",
    "a drum x1 beside x2 ; a carpet x2 ; move x3 patient x1",
    "modified_subject",
)


@pytest.fixture(scope="module")
def splits():
    return grammar.generate()


def parse(logical_form):
    """Frames by variable: 'det', 'noun', 'place', or 'verb' and its roles."""
    frames = {}
    for frame in logical_form.split(" ; "):
        symbols = frame.split()
        if symbols[0] in ("the", "a"):
            det, noun, variable, *place = symbols
            assert len(place) in (0, 2)
            frames[variable] = {
                "det": det,
                "noun": noun,
                "place": (place or [None])[-1],
            }
        else:
            verb, variable, *pairs = symbols
            roles = dict(zip(pairs[::2], pairs[1::2], strict=True))
            assert set(roles) <= ROLES
            frames[variable] = {"verb": verb, **roles}
    return frames


def verbs(frames):
    return [(v, frame) for v, frame in frames.items() if "verb" in frame]


def uses(frames):
    """(what it is called, role, before its verb?) of every noun phrase in a role."""
    for variable, verb in verbs(frames):
        for role in ROLES & set(verb):
            filler = verb[role]
            if re.fullmatch(r"x\d+", filler):
                if "noun" in frames[filler]:
                    noun = frames[filler]["noun"]
                    yield noun, role, int(filler[1:]) < int(variable[1:])
            else:
                yield filler, role, None


def chain(frames, variable, key):
    """Length of the chain that starts at a variable and follows `key`."""
    following = frames[variable].get(key)
    return 0 if following is None else 1 + chain(frames, following, key)


def has_role(nouns, role):
    return lambda example, frames: any(
        noun in nouns and r == role for noun, r, _ in uses(frames)
    )


def has_passive(lemmas):
    return lambda example, frames: (
        " was " in example.sentence
        and any(verb["verb"] in lemmas for _, verb in verbs(frames))
    )


def has_active(lemmas):
    return lambda example, frames: (
        " was " not in example.sentence
        and any({"agent", "patient"} <= set(v) for _, v in verbs_of(frames, lemmas))
    )


def verbs_of(frames, lemmas):
    return [(v, frame) for v, frame in verbs(frames) if frame["verb"] in lemmas]


def has_dative(lemmas, to):
    return lambda example, frames: (
        (" to " in example.sentence) == to and bool(verbs_of(frames, lemmas))
    )


def complements(example, frames):
    return any(chain(frames, v, "content") > 2 for v in frames)


def modifiers(example, frames):
    return any(chain(frames, v, "place") > 2 for v in frames)


def modified_subject(example, frames):
    return any(
        re.fullmatch(r"x\d+", verb[role])
        and frames[verb[role]].get("place")
        and int(verb[role][1:]) < int(variable[1:])
        for variable, verb in verbs(frames)
        for role in ("agent", "patient")
        if role in verb
    )


HELD_OUT = {
    "subject_noun_as_object": has_role({"wolf", "pilot", "judge"}, "patient"),
    "object_noun_as_subject": has_role({"kitten", "tailor", "beaver"}, "agent"),
    "lone_noun_as_object": has_role({"falcon", "baker", "gardener"}, "patient"),
    "lone_name_as_subject": has_role({"Ravi", "Elsa", "Jonas"}, "agent"),
    "active_verb_in_passive": has_passive({"praise", "touch", "catch"}),
    "passive_verb_in_active": has_active({"scratch", "rescue", "notice"}),
    "intransitive_verb_in_causative": has_active({"roll", "bounce", "tilt"}),
    "double_object_verb_in_to_dative": has_dative({"lend", "mail"}, to=True),
    "to_dative_verb_in_double_object": has_dative({"pass", "bring"}, to=False),
    "deeper_complement": complements,
    "longer_modifier": modifiers,
    "modified_subject": modified_subject,
}


def test_kinds():
    assert set(HELD_OUT) == set(GEN_KINDS)
    assert set(GEN_KINDS.values()) == {"lexical", "structural"}


@pytest.mark.parametrize("kind", HELD_OUT)
def test_a_combination_is_in_all_of_its_gen_examples_and_nowhere_else(splits, kind):
    holds = HELD_OUT[kind]
    counts = collections.Counter(
        (name, example.type)
        for name, examples in splits.items()
        for example in examples
        if example.type != "lone_word" and holds(example, parse(example.logical_form))
    )
    assert counts == {("gen", kind): 150}


def test_lone_words_are_in_training_sentences_only_by_themselves(splits):
    held = {"falcon", "baker", "gardener", "Ravi", "Elsa", "Jonas"}
    for example in splits["train"]:
        if held & set(example.sentence.split()):
            assert example == (example.logical_form, example.sentence, "lone_word")


def test_splits_have_no_sentence_in_common(splits):
    sentences = {name: {e.sentence for e in split} for name, split in splits.items()}
    sizes = {name: len(of_split) for name, of_split in sentences.items()}
    lone = len({e.sentence for e in splits["train"] if e.type == "lone_word"})
    assert sizes == {"train": 16_000 + lone, "dev": 500, "test": 500, "gen": 1_800}
    assert len(set.union(*sentences.values())) == sum(sizes.values())


def test_every_symbol_is_known_from_training(splits):
    for field in ("sentence", "logical_form"):
        known, needed = (
            {word for e in splits[name] for word in getattr(e, field).split()}
            for name in ("train", "gen")
        )
        assert needed <= known
    counts = collections.Counter(
        symbol for e in splits["train"] for symbol in e.logical_form.split()
    )
    assert min(counts.values()) >= 20


def test_lengths(splits):
    for name, most_words, most_symbols in (("train", 10, 27), ("gen", 15, 31)):
        assert max(len(e.sentence.split()) for e in splits[name]) <= most_words
        assert max(len(e.logical_form.split()) for e in splits[name]) <= most_symbols


def test_equal_seeds_make_equal_splits_and_others_do_not():
    small = {"sizes": (50, 10, 10), "gen_size": 5}
    assert grammar.generate(3, **small) == grammar.generate(3, **small)
    assert grammar.generate(3, **small) != grammar.generate(4, **small)


def test_first_examples_stay_as_they_are(splits):
    assert splits["test"][0] == FIRST_TEST_EXAMPLE
    assert splits["gen"][-1] == LAST_GEN_EXAMPLE


def test_rendering_of_every_form():
    the, a = (
        lambda noun, *place: grammar.NounPhrase(noun, "the", *place),
        lambda noun: grammar.NounPhrase(noun, "a"),
    )
    mia, give = grammar.NounPhrase("Mia"), grammar.Verb("gave", "give")
    find = grammar.Verb("found", "find")
    clause = grammar.Clause
    pilot = the("pilot", "near", a("tent"))
    found = clause("passive", find, {"patient": a("drum"), "agent": mia})
    cases = {
        ("unergative", give, ("agent", mia)): ("Mia gave", "give x1 agent Mia"),
        ("unaccusative", give, ("patient", a("drum"))): (
            "a drum gave",
            "a drum x1 ; give x2 patient x1",
        ),
        ("active", find, ("agent", mia), ("patient", pilot)): (
            "Mia found the pilot near a tent",
            "find x1 agent Mia patient x2 ; the pilot x2 near x3 ; a tent x3",
        ),
        ("short_passive", find, ("patient", pilot)): (
            "the pilot near a tent was found",
            "the pilot x1 near x2 ; a tent x2 ; find x3 patient x1",
        ),
        ("to_dative", give, ("agent", mia), ("patient", a("drum")), ("goal", mia)): (
            "Mia gave a drum to Mia",
            "give x1 agent Mia patient x2 goal Mia ; a drum x2",
        ),
        (
            "double_object",
            give,
            ("agent", mia),
            ("patient", a("drum")),
            ("goal", the("dog")),
        ): (
            "Mia gave the dog a drum",
            "give x1 agent Mia patient x3 goal x2 ; the dog x2 ; a drum x3",
        ),
        ("complement", find, ("agent", a("boy")), ("content", FOUND)): (
            "a boy found that a drum was found by Mia",
            "a boy x1 ; find x2 agent x1 content x4 ; a drum x3 ; "
            "find x4 agent Mia patient x3",
        ),
    }
    for (form, verb, *arguments), expected in cases.items():
        arguments = {
            role: found if value is FOUND else value for role, value in arguments
        }
        words, mentioned = grammar.read_aloud(clause(form, verb, arguments))
        assert (" ".join(words), grammar.logical_form(mentioned)) == expected


FOUND = object()  # stands for a clause, which cannot be a key


def test_task_gives_these_features():
    task = seqio.get_mixture_or_task("mini_cogs")
    example = next(
        task.get_dataset(None, split="test", shuffle=False).as_numpy_iterator()
    )
    sentence, logical_form, type_ = (text.encode() for text in FIRST_TEST_EXAMPLE)
    assert {k: np.asarray(v).tolist() for k, v in example.items()} == {
        "inputs": [byte + 3 for byte in sentence] + [1],
        "inputs_pretokenized": sentence,
        "targets": [byte + 3 for byte in logical_form] + [1],
        "targets_pretokenized": logical_form,
        "type": type_,
    }
    assert task.splits == ("train", "dev", "test", "gen")
