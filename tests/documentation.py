"""The blocks of code of README and docs, for the tests that run or read them."""

import pathlib
import re
import shlex
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "examples/*/*.md")
    for path in ROOT.glob(pattern)
)
HEREDOC = re.compile(r"cat > (\S+) <<'?(\w+)'?\n(.*?\n)\2\n", re.DOTALL)


class Block(NamedTuple):
    page: pathlib.Path
    line: int
    language: str
    code: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(language, *pages):
    """The blocks of a language, of all pages or of some."""
    found = []
    for page in map(pathlib.Path, pages or PAGES):
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.M):
            line = text[: match.start()].count("\n") + 1
            found.append(Block(page, line, match[1], match[2]))
    return [block for block in found if block.language == language]


def write_files(page, folder):
    """Writes the modules and the files that blocks of a page make by name."""
    for block in blocks("python", page):
        if match := re.match(r"# (\w+\.py)\n", block.code):
            (folder / match[1]).write_text(block.code)
    for block in blocks("sh", page):
        for name, _, text in HEREDOC.findall(block.code):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def statements(block):
    """The simple commands of a block of shell, lists of words.

    Values of variables that the block sets are put in; redirections are left out.
    """
    code = HEREDOC.sub("", block.code).replace("\\\n", " ")
    code = re.sub(r"(^|\s)#[^\n]*", r"\1", code)
    lexer = shlex.shlex(code, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    variables, words, found, file_follows = {}, [], [], False
    for token in [*lexer, "\n"]:
        if file_follows:
            file_follows = False
        elif re.fullmatch(r"[<>&]*[<>]", token):
            file_follows = True
        elif re.fullmatch(r"[();|&\n]+", token):
            while words and (match := re.fullmatch(r"(\w+)=(.*)", words[0], re.DOTALL)):
                variables[match[1]] = match[2]
                del words[0]
            if words[:1] == ["for"]:
                variables[words[1]] = words[3]
            found.append([w for w in words if w not in ("do", "...")])
            words = []
        else:
            for name, value in variables.items():
                token = token.replace(f"${name}", value)
            words.append(token)
    return [statement for statement in found if statement]


def commands(block):
    """(name, arguments) of each `remixer_tf` command of a block of shell."""
    for words in statements(block):
        if words[:3] == ["python", "-m", "remixer_tf"]:
            yield words[3], words[4:]
        elif words[0] == "remixer_tf" and len(words) > 1:
            yield words[1], words[2:]
