"""Plants secrets where real ones would be, and searches for them in all output of processes and commands.

Processes that tests start get the values in their environment; a bearer token that a test sends counts as planted, too. After each test of
a room that imports `no_secret_is_told` into its conftest.py, all output of that test is searched: logs, standard output and error, bodies
of answers, metrics.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws-key-5f1d9c",
    "AWS_SESSION_TOKEN": "planted-aws-session-a07b3e",
    "AZURE_STORAGE_ACCOUNT_KEY": "cGxhbnRlZC1henVyZS1rZXk=",
    "PGPASSWORD": "planted-postgres-e41c77",
}
"""Set for every process that a test starts. No output has a reason to contain one of the values."""
LEAST = 12
"""Minimum length of a text that counts as a secret: a test's token `t` is part of every word."""

_secrets: set[str] = set(ENVIRONMENT.values())
_files: set[Path] = set()
_texts: list[tuple[str, str]] = []


def secret(text: str | None) -> None:
    """Registers a secret that this test sends; no output may contain it."""
    if text and len(text) >= LEAST:
        _secrets.add(text)


def output(path: Path) -> Path:
    """Registers a file that a process writes to; it is read at the end of the test."""
    _files.add(path)
    return path


def said(where: str, text: str) -> str:
    """Registers text that was printed, and where."""
    _texts.append((where, text))
    return text


def leaks() -> list[str]:
    """Where a secret was found, in plain text or base64, without the secret itself."""
    outputs = [(str(path), path.read_text(errors="replace")) for path in sorted(_files) if path.is_file()] + _texts
    forms = {form for text in _secrets for form in (text, base64.b64encode(text.encode()).decode().rstrip("="))}
    return [where for where, text in outputs if any(form in text for form in forms)]


def forget() -> None:
    _files.clear()
    _texts.clear()
    _secrets.clear()
    _secrets.update(ENVIRONMENT.values())


@pytest.fixture(autouse=True)
def no_secret_is_told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plants the secrets for this process and its children, and searches at the end of the test."""
    forget()
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield
    found = leaks()
    forget()
    assert not found, f"a secret was put out: {found}"
