"""Tables for a person: drawn by rich, as wide as the terminal; not cut where there is none, so that `grep` finds whole keys."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

PIPE_WIDTH = 400
"""Columns where the output is no terminal: wider than any row, so that nothing is wrapped."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, styles: Sequence[str | None] = ()) -> None:
    """`styles`: of the columns, rich's words."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else PIPE_WIDTH, highlight=False)
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, show_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        style = styles[number] if number < len(styles) else None
        table.add_column(column, style=style, overflow="fold", no_wrap=not terminal)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # a key may look like markup
    console.print(table)
