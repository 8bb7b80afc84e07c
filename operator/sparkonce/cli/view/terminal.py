"""The one place where text reaches a terminal: control characters in it are shown, never obeyed.

Paths, log lines of drivers and answers of gateways are other people's text. An escape sequence in it could hide a line, forge one, or write
to the clipboard; a bidirectional control turns what follows around. Such characters are written as an escape that JSON and YAML in double
quotes read back as the character, so that one form serves sentences and documents alike. Not only on a terminal: what is written to a file
now is shown by `cat` later.

No other module of the command line prints; a test sees to it.
"""

from __future__ import annotations

import re

import typer

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, delete, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # bidirectional controls, and separators that break lines
    "\ud800-\udfff]"  # bytes of a path that are not UTF-8; nothing can print them
)


def shown(text: str) -> str:
    """The text with control characters escaped; line feeds and tabs stay."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def line(text: str) -> str:
    """The same for one line: a line feed inside it is shown, too."""
    return shown(text).replace("\n", "\\u000a")


def tell(*lines: str, err: bool = False) -> None:
    """Prints each as one line."""
    typer.echo("\n".join(map(line, lines)), err=err)


def write_document(text: str) -> None:
    """Prints a document as it is, but for control characters. Its writer has put texts that have some in double quotes."""
    typer.echo(shown(text), nl=False)


def confirm(question: str) -> bool:
    """Asks on standard error."""
    return typer.confirm(line(question), err=True)
