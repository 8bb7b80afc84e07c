"""The only module that prints to a terminal: control characters are shown, never obeyed.

Paths, log lines of drivers and answers of gateways are untrusted. An escape sequence in them could hide a line, forge one, or write to the
clipboard; a bidirectional control reverses what follows. Such characters are written as an escape that JSON and YAML in double
quotes read back as the character, so that one form serves sentences and documents alike. This also holds for output to a file, which
`cat` may show later.

No other module of the command line prints; a test checks that.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

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
    """As `shown`, for one line: line feeds are escaped, too."""
    return shown(text).replace("\n", "\\u000a")


def tell(*lines: str, err: bool = False) -> None:
    """Prints each as one line. Without a reader (`sparkonce run FILE | true`) nothing is printed, and the command goes on: its exit code is
    that of the job."""
    _print("\n".join(map(line, lines)), nl=True, err=err)


def _print(text: str, *, nl: bool, err: bool = False) -> None:
    try:
        typer.echo(text, nl=nl, err=err)
    except BrokenPipeError:
        _drop_output(sys.stderr if err else sys.stdout)


def _drop_output(stream: TextIO) -> None:
    """What is printed there from now on goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def write_document(text: str) -> None:
    """Prints a document with only its control characters escaped. Its writer has put texts that contain some in double quotes."""
    _print(shown(text), nl=False)


def confirm(question: str) -> bool:
    """Asks on standard error."""
    return typer.confirm(line(question), err=True)
