"""The page of `remixer_tf serve`, asked in Chromium by the keyboard alone."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import remixer_tf as rt
from remixer_tf.server.models import Source
from remixer_tf.server.of_run import ServedRun
from remixer_tf.server.served import GENERATE, Served
from remixer_tf.server.signatures import Signature, Tensor
from tests.browser import browser, expect, needs_chromium, opened  # noqa: F401
from tests.server.conftest import LIMITS, listening, of_run
from tests.server.echo import STRING, Echo

pytestmark = [pytest.mark.slow, needs_chromium]
MARKUP = "<img src=x onerror=alert(1)>"  # An answer is a text.


class Shown(Echo):
    """An `Echo` with several answers, matrices, and results."""

    kind = "EncoderDecoder"

    def __init__(self, name, limits, thread):
        super().__init__(name, limits, thread)
        self.may_write = threading.Event()
        self.may_write.set()
        inputs = {"inputs": STRING, "targets": STRING, "layer": STRING}
        self.observes = Signature(inputs, {}, self._observe, (1,))

    def takes(self, call):
        several = ["temperature", "beams", "n_best"] if call == GENERATE else []
        return super().takes(call) + several

    def describe(self):
        metrics = {"toy/test/exact_match": 51.25, "toy/test/exact_match/type/a": 3.0}
        about = {"task": "toy", "lengths": {"inputs": 9, "targets": 12}}
        return super().describe() | about | {"metrics": metrics}

    async def questions(self, texts, options):
        if "temperature" in options:
            options = {"seed": 9}
        return await super().questions(texts, options)

    async def stream(self, text, options):
        async for piece in super().stream(text, options):
            yield piece
            await self.thread.call(self.may_write.wait, 20)

    def _answer(self, rows):
        found = super()._answer(rows)
        for row, answer in zip(rows, found, strict=True):
            if "n_best" in row:
                n = row["n_best"]
                texts = [b"%s %d" % (row["inputs"].upper(), i) for i in range(n)]
                answer["all_outputs"] = texts
                answer["all_scores"] = np.log([0.5**i / 2 for i in range(n)])
        return found

    def _observe(self, rows):
        (row,) = rows
        reads, writes = list("ab"), list("xyz")
        heads = np.arange(12.0).reshape(2, 3, 2) / 12
        about = {"block": 0, "symbol": "W", "signed": False}
        cross = about | {
            "layer": "decoder/cross",
            "kind": "attention",
            "part": "cross_attention",
            "rows": "decoder",
            "columns": "encoder",
            "heads": 2,
            "values": (heads if row["layer"] else heads.mean(axis=0)[None]).tolist(),
        }
        mixing = about | {
            "layer": "encoder/mixing",
            "kind": "mixing",
            "part": "remixer",
            "rows": "encoder",
            "columns": "encoder",
            "signed": True,
            "heads": 1,
            "values": [[[0.5, -0.5], [None, 1.0]]],
        }
        tokens = {
            "encoder": {"reads": reads, "writes": reads},
            "decoder": {"reads": ["<s>", *writes[:-1]], "writes": writes},
        }
        layers = [cross] if row["layer"] else [mixing, cross]
        return [{"tokens": tokens, "layers": layers, "trimmed": False}]


class Encoder(Served):
    """Says whether texts are long, gives vectors, or answers by spans."""

    kind, version = "EncoderOnly", "3"

    def __init__(self, name, limits, thread, calls):
        super().__init__(name, "", limits, thread)
        one, pair = {"inputs": STRING}, {"question": STRING, "text": STRING}
        found = {
            "classify": Signature(one, {"class_ids": Tensor("int32")}, _classes, (1,)),
            "embed": Signature(one, {"embeddings": Tensor("float32")}, _vectors, (2,)),
            "answer": Signature(pair, {"outputs": STRING}, _spans, (1,)),
        }
        self.signatures = {call: found[call] for call in calls}
        self.signatures[self.default] = self.signatures[calls[0]]

    def _warm_up(self, say):
        pass

    def describe(self):
        return super().describe() | {"classes": ["short", "long"]}


def _classes(rows):
    p = [np.array([1.0, 0.0]) if len(x["inputs"]) < 4 else [0.25, 0.75] for x in rows]
    names = [[b"short", b"long"][int(np.argmax(x))] for x in p]
    return [
        {"outputs": name, "class_ids": int(np.argmax(x)), "probabilities": np.array(x)}
        for x, name in zip(p, names, strict=True)
    ]


def _vectors(rows):
    return [{"embeddings": np.array([len(x["inputs"]), 1.0])} for x in rows]


def _spans(rows):
    return [{"outputs": row["text"].split()[-1]} for row in rows]


def source(kind, name, *given, made=None):
    def load(thread):
        served = kind(name, LIMITS, thread, *given)
        if made is not None:
            made.append(served)
        return served

    return Source(name, load)


@pytest.fixture(scope="module")
def shown():
    """The URL of a server, and its `Shown`, called "toy"."""
    made = []
    with listening([source(Shown, "toy", made=made)], LIMITS) as url:
        yield url, *made


@pytest.fixture(params=[(390, "dark"), (1280, "light")], ids=["phone", "desk"])
def page(request, browser, shown):  # noqa: F811
    width, scheme = request.param
    with opened(browser, width, color_scheme=scheme) as page:
        page.goto(shown[0])
        expect(page.locator("main")).to_be_visible()
        yield page


def ask(page, text):
    """Asks, with the focus in the field of the question."""
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)
    page.keyboard.press("Enter")


def tab_to(page, id):
    """Presses Tab until an element has the focus."""
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == id:
            return
    raise AssertionError(f"Tab does not reach {id}")


def fits(page):
    """Whether nothing is wider than the window."""
    width = "document.documentElement.scrollWidth - document.documentElement."
    return page.evaluate(f"{width}clientWidth") == 0


def test_an_answer_is_seen_as_it_is_written(page, shown):
    _, served = shown
    expect(page.locator("h1")).to_have_text("toy")
    expect(page.locator("#about")).to_have_text(
        "EncoderDecoder · step 7 · toy · reads 9 tokens, writes 12"
    )
    expect(page.locator("#metrics summary")).to_contain_text("test exact_match 51.25")
    served.may_write.clear()
    ask(page, "ab <b>")
    expect(page.locator("#answer")).to_have_text("A")
    expect(page.locator("#send")).to_have_text("Stop")
    served.may_write.set()
    expect(page.locator("#facts")).to_contain_text("probability 0.25% · 6 tokens")
    expect(page.locator("#answer")).to_have_text("AB <B>")
    assert page.locator("#answer b").count() == 0
    served.may_write.clear()
    ask(page, "abc")
    expect(page.locator("#answer")).to_have_text("A")
    page.keyboard.press("Escape")
    served.may_write.set()
    expect(page.locator("#facts")).to_have_text("Stopped.")
    expect(page.locator("#send")).to_have_text("Answer")
    ask(page, "a")
    expect(page.locator("#facts")).to_contain_text("probability 36.8% · 1 token ·")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert background == ("rgb(18, 20, 24)" if dark else "rgb(246, 247, 249)")
    assert fits(page)


def test_how_likely_an_answer_is(page):
    ask(page, "ab")
    expect(page.locator("#facts")).to_contain_text("probability 13.5%")
    tab_to(page, "other")
    ask(page, MARKUP[:9])
    facts = page.locator("#scored-facts")
    expect(facts).to_contain_text("1,100 times less likely than the model's answer")
    expect(page.locator("#scored")).to_have_text(MARKUP[:9])
    page.locator("#scored .tokens").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End"):
        page.keyboard.press(key)
    expect(facts).to_have_text("Token 9 of 9, “=”: 36.8%")
    page.keyboard.press("Escape")
    expect(facts).to_contain_text("9 tokens")
    assert fits(page)


def test_the_best_answers(page):
    tab_to(page, "how")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+Tab")
    ask(page, "ab")
    rows = page.locator("#answer li")
    expect(rows).to_have_count(5)
    expect(rows.nth(1)).to_have_text("AB 125.0%")
    rows.nth(1).locator("button").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#scored")).to_have_text("AB 1")
    expect(page.locator("#other")).to_have_value("AB 1")
    expect(page.locator("#scored-facts")).to_contain_text("less likely")


def test_matrices_by_the_keyboard(page):
    ask(page, "ab")
    expect(page.locator("#facts")).to_contain_text("probability")
    page.locator("#layers summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#map-name")).to_have_text("Block 0: cross attention")
    tab_to(page, "matrix")
    cell = page.locator("#cell")
    for key, text in (
        ("ArrowDown", "“x” reads “a”: 0.2500"),
        ("ArrowDown", "“y” reads “a”: 0.4167"),
        ("End", "“y” reads “b”: 0.5000"),
    ):
        page.keyboard.press(key)
        expect(cell).to_have_text(text)
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowDown")
    tab_to(page, "matrix")
    page.keyboard.press("Home")
    expect(cell).to_have_text("“x” reads “a”: 0.0000")
    page.locator("#maps button").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#map-name")).to_have_text("Block 0: remixer, W")
    expect(page.locator("#scale")).to_have_text("-11")
    box = page.locator("#matrix").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + box["height"] - 5)
    expect(cell).to_have_text("“b” reads “b”: 1.0000")
    assert fits(page)


def test_errors_are_sentences(browser, shown):  # noqa: F811
    refused = "the server responded with a status"
    with opened(browser, 390, expected=[refused]) as page:
        page.goto(shown[0])
        expect(page.locator("#send")).to_be_visible()
        ask(page, "a" * 501)
        expect(page.locator("#error")).to_have_text(
            "prompt has 501 characters. The most: 500."
        )
        expect(page.locator("#result")).to_be_hidden()
        ask(page, "bug")
        expect(page.locator("#error")).to_contain_text("could not compute this answer.")
        ask(page, "ab")
        expect(page.locator("#answer")).to_have_text("AB")
        expect(page.locator("#error")).to_be_hidden()


def test_a_choice_of_models(browser):  # noqa: F811
    sources = [
        source(Encoder, "classes", ["classify", "embed"]),
        source(Encoder, "vectors", ["embed"]),
        source(Encoder, "spans", ["answer", "embed"]),
        source(Echo, "echo"),
    ]
    with listening(sources, LIMITS) as url, opened(browser, 390) as page:
        page.goto(url)
        expect(page.locator("#send")).to_have_text("Classify")
        for id in ("how", "compare", "second-box", "layers", "metrics"):
            expect(page.locator(f"#{id}")).to_be_hidden()
        ask(page, "a text")
        expect(page.locator("#answer li").first).to_have_text("long75.0%")

        page.locator("#models").select_option("vectors")
        expect(page.locator("#result")).to_be_hidden()
        expect(page.locator("#send")).to_have_text("Encode")
        ask(page, "abc")
        expect(page.locator("#facts")).to_contain_text("a vector of 2 numbers")
        page.locator("#second").fill("abc")
        page.locator("#question").focus()
        ask(page, "abc")
        expect(page.locator("#answer")).to_have_text("cosine similarity 1.0000")

        page.locator("#models").select_option("spans")
        expect(page.locator("#second-label")).to_have_text("Text with the answer")
        page.locator("#second").fill("it was Ann")
        page.locator("#question").focus()
        ask(page, "who?")
        expect(page.locator("#answer mark")).to_have_text("Ann")

        page.locator("#models").select_option("echo")
        expect(page.locator("#how")).to_be_hidden()
        ask(page, "ab")
        page.locator("#other").fill("z" * 400)
        page.locator("#other").press("Enter")
        expect(page.locator("#scored-facts")).to_contain_text("1.9×10⁻¹⁷⁴ · 400 tokens")
        page.locator("#question").focus()
        ask(page, MARKUP)
        expect(page.locator("#answer")).to_have_text(MARKUP.upper()[:16])
        assert fits(page)


def test_a_token_is_kept_in_memory(browser):  # noqa: F811
    expected = ["the server responded with a status of 401"]
    sources = [source(Shown, "toy")]
    with (
        listening(sources, LIMITS, token="correct horse") as url,
        opened(browser, 390, expected=expected) as page,
    ):
        page.goto(url)
        expect(page.locator("#token")).to_be_focused()
        expect(page.locator("main")).to_be_hidden()
        ask(page, "wrong horse")
        expect(page.locator("#about")).to_contain_text("does not know this token")
        ask(page, "correct horse")
        expect(page.locator("h1")).to_have_text("toy")
        ask(page, "ab")
        expect(page.locator("#answer")).to_have_text("AB")
        kept = "localStorage.length + sessionStorage.length + document.cookie.length"
        assert page.evaluate(kept) == 0
        page.reload()
        expect(page.locator("#token")).to_be_visible()


def test_nothing_but_its_own_files(browser, shown):  # noqa: F811
    with opened(browser, 390, expected=["Content Security Policy"]) as page:
        response = page.goto(shown[0])
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), "
            "{textContent: 'window.ran = true'}))"
        )
        assert page.evaluate("window.ran") is None


def test_a_run(browser, bytes_run):  # noqa: F811
    with (
        listening([of_run("tiny", bytes_run, sizes=(1,))], LIMITS) as url,
        opened(browser, 1280, 900) as page,
    ):
        page.goto(url)
        expect(page.locator("#about")).to_contain_text("step 1")
        ask(page, "A cat")
        expect(page.locator("#answer .tokens")).to_be_visible()
        page.locator("#layers summary").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#maps button").first).to_be_visible()
        tab_to(page, "matrix")
        page.keyboard.press("ArrowDown")
        expect(page.locator("#cell")).to_contain_text("reads “A”")


@pytest.mark.slower
def test_runs_of_images_and_spans(browser, image_run, span_run, tmp_path):  # noqa: F811
    image = np.random.default_rng(0).integers(0, 256, [9, 7, 3], np.uint8)
    file = tmp_path / "image.png"
    file.write_bytes(tf.io.encode_png(image).numpy())
    names = ["blue", "green", "red"]

    def load(thread):
        run = rt.load(image_run, bindings=[f"image_to_class.classes = {names}"])
        return ServedRun(run, "colors", LIMITS, thread, (1,))

    sources = [Source("colors", load), of_run("spans", span_run, sizes=(1,))]
    with listening(sources, LIMITS) as url, opened(browser, 390) as page:
        page.goto(url)
        page.locator("#image").set_input_files(file)
        page.locator("#send").click()
        expect(page.locator("#answer li")).to_have_count(3)
        found = rt.load(image_run).classify(image)
        for row, i in enumerate(np.argsort(-np.array(found.probabilities))):
            text = f"{names[i]}{100 * found.probabilities[i]:.1f}%"
            expect(page.locator("#answer li").nth(row)).to_have_text(text)
        page.locator("#models").select_option("spans")
        page.locator("#second").fill("it was Ann")
        page.locator("#question").focus()
        ask(page, "who?")
        answer = rt.load(span_run).answer("who?", "it was Ann")
        expect(page.locator("#answer mark")).to_have_text(answer or "no answer")
        assert fits(page)
