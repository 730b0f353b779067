"""The page of examples/browser answers in Chromium as `infer` does."""

import contextlib
import functools
import http.server
import json
import pathlib
import shutil
import threading

import gin
import pytest

from remixer_tf.commands import run_command
from remixer_tf.data.vocabulary_training import train_vocabulary
from tests.browser import browser, expect, needs_chromium, opened  # noqa: F401
from tests.tiny_run import SIZES

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples/browser"
LIBRARY = EXAMPLE / "node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs"
pytestmark = [
    pytest.mark.slow,
    needs_chromium,
    pytest.mark.skipif(
        not LIBRARY.exists(),
        reason="needs onnxruntime-web: run npm install as examples/browser/README.md",
    ),
]

# The model learns these by heart. A model that knows nothing finds many answers likely.
PAIRS = {
    "the rabbit moved a barrel": "the rabbit x1 ; move x2 agent x1 patient x3",
    "a wolf slept": "a wolf x1 ; sleep x2 agent x1",
    "Hugo gave Ines the tent": "give x1 agent Hugo patient x2 goal Ines ; the tent x2",
}
TRAINED = [
    "--gin_file=models/remixer_tiny.gin",
    "--gin_file=runs/own_task.gin",
    *SIZES,
    "--gin.D_MODEL=64",
    "--gin.BATCH_SIZE=3",
    "--gin.FEATURE_LENGTHS={'inputs': 9, 'targets': 18}",
    "--gin.TRAIN_STEPS=60",
    "--gin.WARMUP_STEPS=10",
    "--gin.Schedule.checkpoint_period=60",
    "--gin.VOCABULARY=@sentencepiece_vocabulary()",
    "--gin.table_task.name='pairs'",
    "--gin.table_task.inputs='{sentence}'",
    "--gin.table_task.targets='{form}'",
]
SENTENCES = [
    *PAIRS,
    "  a \t wolf   slept ",  # blanks between words count once
    "ａ wolf slept",  # NFKC makes the wide letter narrow
    "a zebra slept",  # a word that the vocabulary lacks
    "a very old zebra slept",  # three of them are one
]
LONG = "a wolf slept " * 5
DESCRIPTION = json.dumps(
    {"vocabularies": dict.fromkeys(["inputs", "targets"], {"kind": "ByteVocabulary"})}
)
TEXTS = ["the cat", "naïve Ærø 猫 🐈", " a  b"]


def infer(export, texts, tmp_path):
    questions, answers = tmp_path / "questions", tmp_path / "answers"
    questions.write_text("\n".join(texts) + "\n", encoding="utf-8")
    files = [f"--input={questions}", f"--output={answers}"]
    run_command("infer", [f"--model_dir={export}", *files])
    return answers.read_text(encoding="utf-8").split("\n")[:-1]


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def served(folder, export=None, library=True):
    """Serves the page as the README says, and gives its address."""
    for name in ("index.html", "style.css", "page.js"):
        shutil.copy(EXAMPLE / name, folder)
    if export:
        shutil.copytree(export, folder / "model")
    if library:
        (folder / "node_modules").symlink_to(EXAMPLE / "node_modules")
    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def page(browser):  # noqa: F811
    """A page that may ask its own server alone, at a phone's width."""
    with opened(browser, 320, expected=["Failed to load resource"]) as page:
        yield page


def ask(page, texts):
    """Asks by the keyboard alone, and returns the answers."""
    expect(page.locator("#status")).to_contain_text("The model is loaded")
    found = []
    for text in texts:
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(text)
        page.keyboard.press("Enter")
        expect(page.locator("#answers li")).to_have_count(len(found) + 1)
        found.append(page.locator(".answer").first.text_content())
    return found


@pytest.fixture(scope="module")
def words_export(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    rows = ["sentence\tform", *map("\t".join, PAIRS.items())]
    (folder / "pairs.tsv").write_text("\n".join(rows) + "\n")
    words = str(folder / "words.model")
    train_vocabulary([" ".join(rows[1:])] * 3, words, model_type="word")
    run, files = f"--model_dir={folder}/run", {"train": f"{folder}/pairs.tsv"}
    named = [f"--gin.FILES={files}", f"--gin.sentencepiece_vocabulary.path='{words}'"]
    run_command("train", [run, *TRAINED, *named])
    gin.clear_config()
    run_command("export", [run, "--format=onnx", "--weights=int8"])
    gin.clear_config()
    return folder / "run/onnx_int8/60"


def test_words_in_8_bits(words_export, page, tmp_path, clear_gin):
    expected = infer(words_export, SENTENCES, tmp_path)
    (tmp_path / "site").mkdir()
    with served(tmp_path / "site", words_export) as address:
        page.goto(address)
        found = ask(page, SENTENCES)
        assert found == expected
        assert found[: len(PAIRS)] == [*PAIRS.values()]
        page.keyboard.insert_text(LONG)
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_contain_text(
            "16 tokens, and the model reads"
        )
        assert page.evaluate("document.documentElement.scrollWidth") == 320


@pytest.mark.slower
def test_bytes_in_float32(bytes_run, page, tmp_path, clear_gin):
    run_command("export", [f"--model_dir={bytes_run}", "--format=onnx"])
    export = bytes_run / "onnx/1"
    (tmp_path / "site").mkdir()
    with served(tmp_path / "site", export) as address:
        page.goto(address)
        assert ask(page, TEXTS) == infer(export, TEXTS, tmp_path)


@pytest.mark.parametrize(
    "missing, words",
    [("model", "model.json: export a run"), ("library", "run npm install first")],
)
def test_what_is_missing_is_named(missing, words, page, tmp_path):
    export = tmp_path / "export" if missing == "library" else None
    if export:
        export.mkdir()
        (export / "model.json").write_text(DESCRIPTION)
    (tmp_path / "site").mkdir()
    with served(tmp_path / "site", export, missing == "model") as address:
        page.goto(address)
        expect(page.locator("#status")).to_contain_text(words)
    expect(page.get_by_role("button")).to_be_disabled()


@pytest.mark.parametrize("scheme, page_color", [("light", 255), ("dark", 22)])
def test_dark_and_light(scheme, page_color, page, tmp_path):
    page.emulate_media(color_scheme=scheme)
    with served(tmp_path) as address:
        page.goto(address)
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert color == f"rgb({page_color}, {page_color}, {page_color})"
