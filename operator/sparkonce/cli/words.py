"""How numbers, sizes and times are written for a person. Pure; local time, because a person reads it."""

from __future__ import annotations

import datetime as dt

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def count(number: int) -> str:
    """`26 483`."""
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
    """Roughly: `12 s`, `5 min`, `3 h`, `29 d`."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def sentence(text: str) -> str:
    """On one line, whatever a library put into its message."""
    return " ".join(text.split())
