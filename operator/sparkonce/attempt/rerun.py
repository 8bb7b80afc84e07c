"""The annotation `sparkonce.dev/rerun: TEXT` of an IdempotentJob: runs the object's current spec as the next generation of its key. Pure.

The text identifies the request, and is its reason in the history. Each text opens at most one generation of a key, whichever object carries
it; the record keeps a digest of it with the request that opened the generation. A counter or a time was rejected as identity: a process
that reads an old copy of the object could not tell a repetition from a new request.

The text is input: one that is empty, too long, or has characters that no terminal shows is refused and opens nothing.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata

ANNOTATION = "sparkonce.dev/rerun"
LIMIT = 256
"""Characters of the text: it is shown in `.status`, which every watcher gets."""
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of controls, invisible and bidirectional marks, surrogates, and separators of lines."""


def problem_of(text: str) -> str:
    """Why this text is refused, and what to do; empty: it is valid."""
    why = _why(text)
    return f"the annotation {ANNOTATION} is refused: {why}" if why else ""


def _why(text: str) -> str:
    if not text.strip():
        return "it is empty; write the reason, or remove it"
    if len(text) > LIMIT:
        return f"it has {len(text):,} characters; write at most {LIMIT}"
    bad = next((letter for letter in text if unicodedata.category(letter) in _UNSHOWN), None)
    return "" if bad is None else f"it has the control character U+{ord(bad):04X}; write it without"


def digest(text: str) -> str:
    """What a record keeps of the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def quoted(text: str) -> str:
    """The text in double quotes, with quotes and backslashes escaped, as part of a sentence."""
    return json.dumps(text, ensure_ascii=False)
