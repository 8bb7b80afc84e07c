"""`sparkonce plan`: an answer, told as what would happen. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sparkonce.cli.show import ending_lines, generation_line
from sparkonce.engine.embedded import Ending
from sparkonce.engine.request import Answer
from sparkonce.model.key import Key

_WOULD = {
    Answer.NEW: "would run",
    Answer.REOPEN: "would run the next generation",
    Answer.SUPERSEDE: "would end the other job and run in its place",
    Answer.TAKE_OVER: "would go on with it",
    Answer.FOLLOW: "would wait for it",
}


def plan_lines(ending: Ending, key: Key, *, attempts: Path) -> Iterator[str]:
    """The first line begins with what would happen."""
    if ending.answer is Answer.REPLAY:
        yield f"would replay: {generation_line(ending.record, ending.result)}"
    elif would := _WOULD.get(ending.answer):
        yield f"{would}: {key.text}: {ending.reason}"
    else:
        first, *others = ending_lines(ending, attempts=attempts)
        yield f"would be refused: {first}"
        yield from others
