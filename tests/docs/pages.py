"""Markdown pages of the repository, read as text: their code, and the commands that they name."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: A page that names commands as they once were.
HISTORY = "CHANGELOG.md"
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PROGRAMS = {"dledger", "dledger-chaos", "dledger-namesrv", "dledger-check", "make", "python"}
#: What ends a command for the shell.
_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>"}


@dataclass(frozen=True, slots=True)
class Block:
    """A code block. `kind`: the word after the fence or empty. `line`: its first line, from 1."""

    kind: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command as a shell would split it: `words[0]` is the program."""

    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)


def markdown_pages() -> list[str]:
    """Every page of the repository, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [page for page in sorted(set(listed.stdout.split())) if (ROOT / page).exists()]


def blocks_of(text: str) -> Iterator[Block]:
    """Fenced and indented blocks."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        if fence := re.match(r"\s*```(\w*)", line):
            end = next(i for i in range(number + 1, len(lines) + 1) if lines[i].strip() == "```")
            yield Block(fence[1], number + 2, "\n".join(lines[number + 1 : end]))
            number = end + 1
        elif line.startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block("", number + 1, "\n".join(line[4:] for line in lines[number:end]))
            number = end
        else:
            number += 1


def commands_of(text: str) -> Iterator[Command]:
    """Commands of this project, in blocks and in `code` within sentences."""
    in_blocks = set()
    for block in blocks_of(text):
        lines = block.text.splitlines()
        in_blocks.update(range(block.line, block.line + len(lines)))
        joined = ""
        for number, line in enumerate(lines, block.line):
            joined += line
            if joined.endswith("\\"):
                joined = joined[:-1]
                continue
            yield from _commands_in(joined, number)
            joined = ""
    for number, line in enumerate(text.splitlines(), 1):
        if number not in in_blocks:
            for span in _SPAN.finditer(line):
                yield from _commands_in(span[1], number)


def _commands_in(line: str, number: int) -> Iterator[Command]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += "<>@:%{}[]+,!$^"
    lexer.commenters = "#" if re.search(r"(^|\s)#", line) else ""
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # an apostrophe in a sentence
        return
    part: list[str] = []
    for word in (*words, ";"):
        if word in _ENDS:
            if part and (found := _command(part, number)):
                yield found
            part = []
        else:
            part.append(word)


def _command(words: list[str], number: int) -> Command | None:
    at = 0
    while at < len(words) and (re.fullmatch(r"[A-Z_]+=.*", words[at]) or words[at] in ("sudo", "exec", "$")):
        at += 1
        if words[at - 1] == "sudo" and words[at : at + 1] == ["-u"]:
            at += 2
    if at >= len(words):
        return None
    program = words[at].split("/")[-1]
    return Command(number, (program, *words[at + 1 :])) if program in _PROGRAMS else None
