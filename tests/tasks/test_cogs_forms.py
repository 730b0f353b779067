import numpy as np
import pytest
import seqio

from remixer_tf.tasks import cogs
from remixer_tf.tasks.cogs_forms import to_variable_free
from tests.tasks.cogs_inverse import to_logical_form

# Made up, in COGS's words.
PAIRS = {
    "A rose was helped by a dog .": (
        "rose ( x _ 1 ) AND help . theme ( x _ 3 , x _ 1 ) AND "
        "help . agent ( x _ 3 , x _ 6 ) AND dog ( x _ 6 )",
        "help ( theme = rose , agent = dog )",
    ),
    "The dog gave a dog on the TV to Ava .": (
        "* dog ( x _ 1 ) ; * tv ( x _ 7 ) ; give . agent ( x _ 2 , x _ 1 ) AND "
        "give . theme ( x _ 2 , x _ 4 ) AND give . recipient ( x _ 2 , Ava ) AND "
        "dog ( x _ 4 ) AND dog . nmod . on ( x _ 4 , x _ 7 )",
        "give ( agent = * dog , theme = dog ( nmod . on = * tv ) , recipient = Ava )",
    ),
    "Ava hoped that the dog wanted to run .": (
        "* dog ( x _ 4 ) ; hope . agent ( x _ 1 , Ava ) AND "
        "hope . ccomp ( x _ 1 , x _ 5 ) AND want . agent ( x _ 5 , x _ 4 ) AND "
        "want . xcomp ( x _ 5 , x _ 7 ) AND run . agent ( x _ 7 , x _ 4 )",
        "hope ( agent = Ava , ccomp = want ( agent = * dog , "
        "xcomp = run ( agent = * dog ) ) )",
    ),
    "run": ("LAMBDA a . LAMBDA e . run . agent ( e , a )",) * 2,
    "Ava": ("Ava", "Ava"),
}


@pytest.mark.parametrize("sentence", PAIRS)
def test_both_ways(sentence):
    logical_form, variable_free = PAIRS[sentence]
    assert to_variable_free(logical_form) == variable_free
    assert to_logical_form(variable_free, sentence) == logical_form


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("run ( agent = cat )", "no 'cat' from word 0"),
        ("run ( agent = dog , xcomp = run ( agent = dog ) )", "2 verbs.*'ran'"),
        ("run ( agent = dog", "expected"),
        ("run ( agent = dog ) )", "after its end"),
    ],
)
def test_what_is_no_form_of_the_sentence(form, words):
    with pytest.raises(ValueError, match=words):
        to_logical_form(form, "A dog ran .")


@pytest.mark.parametrize("form", ["run ( x _ 1", "cat ( x _ 1 ) AND dog ( x _ 3 )"])
def test_what_is_no_logical_form(form):
    with pytest.raises(ValueError, match="A logical form of COGS.*x _ 1"):
        to_variable_free(form)


def test_the_task(tmp_path, monkeypatch):
    sentence = "A rose was helped by a dog ."
    logical_form, variable_free = PAIRS[sentence]
    (tmp_path / "gen.tsv").write_text(f"{sentence}\t{logical_form}\tcp_recursion\n")
    monkeypatch.setenv("REMIXER_TF_COGS_DIR", str(tmp_path))
    task = seqio.get_mixture_or_task("cogs_variable_free")
    (example,) = task.get_dataset(None, "gen", shuffle=False).as_numpy_iterator()
    inputs, targets = (
        [byte + 3 for byte in text.encode()] + [1]
        for text in (f"cogs: {sentence}", variable_free)
    )
    assert {k: np.asarray(v).tolist() for k, v in example.items()} == {
        "inputs": inputs,
        "inputs_pretokenized": f"cogs: {sentence}".encode(),
        "targets": targets,
        "targets_pretokenized": variable_free.encode(),
        "type": b"cp_recursion",
    }


@pytest.mark.slow
@pytest.mark.real_data
def test_every_row_of_the_real_files(real_data_dir):
    cogs.data_folder.set(str(real_data_dir / "cogs"))
    try:
        rows = [r for split in cogs.SPLITS for r in cogs.read_rows(split)]
    finally:
        cogs.data_folder.set(None)
    assert len(rows) == 51_155
    forms = set()
    for sentence, logical_form, _ in rows:
        form = to_variable_free(logical_form)
        assert "x _" not in form
        sentence = sentence.removeprefix("cogs: ")
        assert to_logical_form(form, sentence) == logical_form, sentence
        forms.add(form)
    assert len(forms) > 40_000
