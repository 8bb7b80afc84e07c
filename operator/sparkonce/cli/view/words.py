"""Formats numbers, sizes, times and tables for a person. Times are local.

rich draws tables as wide as the terminal. Without a terminal nothing is cut, so that `grep` finds whole keys.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable, Sequence

from sparkonce.cli.view.terminal import line, tell

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def count(number: int) -> str:
    """A count with its thousands apart: `26 483`."""
    return f"{number:,}".replace(",", " ")


def rows(number: int) -> str:
    return f"{count(number)} row" + ("" if number == 1 else "s")


def size(octets: int) -> str:
    """`1.2 MB`, in powers of 1000 as disks are sold."""
    value, units = float(octets), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "bytes" else f"{value:.1f} {units[0]}"


def when(seconds: float | None) -> str:
    """Unix seconds as `2026-11-21 14:03`."""
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M") if seconds else "-"


def when_exactly(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def clock(seconds: float) -> str:
    """Elapsed time as `0:42` or `1:02:03`."""
    whole = max(0, int(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def span(seconds: float) -> str:
    """A rounded duration: `12 s`, `5 min`, `3 h`, `29 d`."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def sentence(text: str) -> str:
    """Collapses all whitespace, so that a library's message fits on one line."""
    return " ".join(text.split())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, styles: Sequence[str | None] = ()) -> None:
    """Prints a table. styles: one per column, in rich's notation."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, show_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        style = styles[number] if number < len(styles) else None
        table.add_column(Text(line(column)), style=style, overflow="fold", no_wrap=not terminal)
    for row in rows:
        table.add_row(*(Text(line(cell)) for cell in row))  # a key may look like markup
    # Without a terminal there is no width to keep to: any number would cut a row that is longer.
    console = Console(file=sys.stdout, width=None if terminal else sys.maxsize, highlight=False)
    if terminal:
        console.print(table)
        return
    with console.capture() as drawn:
        console.print(table)
    tell(*(text.rstrip() for text in drawn.get().splitlines()))  # rich fills the last column up to its longest cell
