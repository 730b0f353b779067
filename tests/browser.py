"""Chromium, for tests of pages: import `browser`, and mark them `needs_chromium`."""

import contextlib
import shutil

import pytest

CHROMIUM = shutil.which("chromium")
OPTIONS = "--no-sandbox --disable-gpu --disable-background-networking --no-first-run"

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright, of remixer_tf[dev]"
)
expect = playwright.expect
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium: apt-get install it"
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=OPTIONS.split())
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, width, height=640, expected=(), **options):
    """A block with a page that asks no other host than 127.0.0.1, and has no errors.

    Args:
        browser: the fixture.
        width, height: ints, in pixels.
        expected: texts of which each error in the page's console has one.
        **options: of Playwright's `new_context`.
    """
    size = {"width": width, "height": height}
    context = browser.new_context(viewport=size, **options)
    page = context.new_page()
    hosts, errors = set(), []
    page.on("request", lambda request: hosts.add(request.url.split(":")[1]))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: said.type == "error" and errors.append(said.text))
    yield page
    context.close()
    assert hosts <= {"//127.0.0.1", ","}, hosts  # "data:,"
    unexpected = [x for x in errors if not any(text in x for text in expected)]
    assert not unexpected
