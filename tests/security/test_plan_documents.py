"""No document makes `plan` hang, crash or write: each is answered or refused."""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path
from random import Random
from typing import cast

import pytest
import typer
from typer.main import get_command

from harness import planted
from harness.effort import seed, size
from harness.patience import promised
from security.documents import documents
from sparkonce.blocking import run
from sparkonce.cli.app import main, program
from sparkonce.cli.exits import ExitCode
from sparkonce.model import manifest
from sparkonce.model.validation import InvalidJob
from sparkonce.store.open import open_store
from sparkonce.store.protocol import Query

CAMPAIGN = "plan documents"
ANSWERS = (ExitCode.SUCCEEDED, ExitCode.INVALID, ExitCode.UNAVAILABLE)
"""Unavailable is for a bucket, because the credentials in the environment are not valid."""
PARTS = 10
"""The number of tests that share the campaign, so that it runs in parallel and within the time limit of a test."""
CPU = 1.0
"""CPU seconds for one document, including reading and hashing its own files."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_document_is_answered_or_refused(part: int, tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutated examples and documents of the CRD's schema never end in exit code 70, take under a CPU second each, and reserve nothing."""
    monkeypatch.chdir(tmpfs_path)
    monkeypatch.setenv("SPARKONCE_STORE", str(tmpfs_path / "ledger.db"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmpfs_path / "data"))
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_REGION",
    ):  # an S3 output is opened, but nothing is sent to it
        monkeypatch.setenv(name, "none")
    Path("job.py").write_text("pass\n")
    commands = cast("typer.Typer", get_command(program(["plan"])))  # built once; main would build it for each document
    codes: dict[int, int] = {}
    slowest = 0.0
    for document in documents(Random(seed(f"{CAMPAIGN}, part {part}")), size(CAMPAIGN) // PARTS):
        Path("job.yaml").write_bytes(document)
        out, err = io.StringIO(), io.StringIO()
        began = time.process_time()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["plan", "job.yaml", "--application", "job.py"], commands=commands)
        took = time.process_time() - began
        said = err.getvalue() + out.getvalue()
        assert code in ANSWERS, f"{code}: {said}\n{document[:2000]!r}"
        assert took < promised(CPU), f"{took:.1f} CPU seconds: {said[:500]}\n{document[:2000]!r}"
        said.encode()  # the output can be encoded
        planted.said("plan", said)
        codes[code] = codes.get(code, 0) + 1
        slowest = max(slowest, took)
    print(f"{sum(codes.values())} documents: {codes}, the slowest took {slowest:.2f} CPU seconds")
    store = open_store(str(tmpfs_path / "ledger.db"))
    assert list(run(store.list(Query())).records) == []
    run(store.close())


def test_the_documents_reach_what_is_behind_the_parser() -> None:
    """Of three hundred documents at least twenty are jobs and a hundred are refused for a field, so they are not all broken YAML."""
    told = {"a job": 0, "a field": 0, "no YAML": 0}
    for document in documents(Random(1), 300):
        try:
            manifest.load(document.decode(), params={}, source="")
            told["a job"] += 1
        except InvalidJob as refused:
            told["no YAML" if "not readable as YAML" in str(refused) else "a field"] += 1
        except UnicodeDecodeError:
            told["no YAML"] += 1
    assert told["a job"] >= 20, told
    assert told["a field"] > 100, told
