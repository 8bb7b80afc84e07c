"""The report's page: it needs no other file, shows the findings, and escapes text from outside."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from audit.scene import Scene
from harness.patience import completed
from sparkonce.audit.findings import Finding, Kind
from sparkonce.audit.groups import KeyName
from sparkonce.audit.page import page
from sparkonce.audit.report import AuditReport, Cost, TableSummary

COST = Cost(
    seconds=2.0, listing_seconds=0.5, reading_seconds=1.0, files=1000, peak_bytes=90_000_000, base_bytes=60_000_000
)


class Strict(HTMLParser):
    """Checks that elements are closed in order, and records attributes that load something."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        loading = ("src", "href", "xlink:href", "onload", "srcset", "data")
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in loading]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Strict:
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def test_a_page_needs_nothing_from_elsewhere(clean: Scene) -> None:
    """The page is well formed and has no script, link, image, font or address that a browser would request. A clean report has two
    plots."""
    text = page(clean.audit())
    parsed = read(text)
    assert text.startswith("<!DOCTYPE html>")
    assert parsed.loads == []
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(parsed.seen)
    assert not re.search(r"url\(|@import|https?:", text)
    assert parsed.seen.count("svg") == 2  # nothing was found, so there is no plot of kinds
    assert "no defect in 2 table(s), 5 commits, 25 rows in 10 files, 5 keys" in parsed.text


def test_a_page_tells_each_finding(clean: Scene) -> None:
    """The page has severity, kind, place, sentence and remedy of each finding, and a plot that counts the kinds."""
    path = clean.files(clean.written[0])[0]
    path.unlink()
    shutil.rmtree(clean.table("totals"))
    parsed = read(page(clean.audit()))
    assert parsed.seen.count("svg") == 3
    for said in (
        "defect",
        "missing file",
        "record without slot",
        f"file://{path}",
        "restore it from a backup",
        "2 defect(s)",
    ):
        assert said in parsed.text


def test_findings_of_one_kind_are_one_row_of_the_page() -> None:
    """Three hundred findings of one table are one row with their number, the first of them and a bounded list; keys stand beside hashes."""
    findings = tuple(
        Finding(
            kind=Kind.MISSING_FILE,
            table="file:///lake",
            subject=f"{number:064x}-orders-g1",
            what=f"it is not there; committed by {number:064x}-orders-g1, attempt 1",
            todo="restore it",
            key_hash=f"{number:064x}",
        )
        for number in range(300)
    )
    names = {each.key_hash: KeyName("local", f"day-{number}") for number, each in enumerate(findings)}
    parsed = read(page(AuditReport(started=0.0, tables=(), findings=findings, cost=COST, ledger="x", names=names)))
    assert parsed.text.count("missing file") == 3, "a row, and a bar of the plot with its title"
    assert "day-0, day-1, day-2 and 297 more" in parsed.text
    assert "committed by day-0 = 000000000000" in parsed.text
    assert "and 200 more in the JSON" in parsed.text
    assert parsed.seen.count("li") == 101


def test_what_others_wrote_is_text() -> None:
    """A table, a key or a message that looks like HTML is shown as text; long plots are cut, and empty ones say so."""
    evil = '"><script>alert(1)</script>&amp;'
    finding = Finding(kind=Kind.HELD, subject=evil, what=evil, todo=evil)
    table = TableSummary(
        kind="slotLog",
        uri=f"file:///{evil}",
        effects=1,
        visible=1,
        files=1,
        rows=5,
        bytes=9,
        staged=0,
        staged_bytes=0,
        days={},
    )
    report = AuditReport(started=0.0, tables=(table,), findings=(finding,), cost=COST, ledger=evil)
    parsed = read(page(report))
    assert "script" not in parsed.seen
    assert parsed.text.count(evil) >= 4
    assert "nothing to show" in parsed.text


def test_the_slope_is_told_where_files_are_many_enough() -> None:
    """1,000 files in 2 s, and 30 MB more than at the start, give 2,000 s and 30.06 GB at a million; ten files are not extrapolated."""
    assert COST.seconds_per_million == pytest.approx(2000.0)
    assert COST.bytes_per_million == pytest.approx(30.06e9)
    assert COST.files_per_second == 500
    few = Cost(seconds=1.0, listing_seconds=0.0, reading_seconds=0.0, files=10, peak_bytes=2, base_bytes=1)
    assert few.seconds_per_million is None
    report = AuditReport(started=0.0, tables=(), findings=(), cost=COST, ledger=None)
    assert "2000 s and 30.1 GB at 1 000 000 files" in read(page(report)).text


def test_a_page_opens_in_a_browser(clean: Scene, tmp_path: Path) -> None:
    """If a browser is installed it draws the page offline, with all three bars; otherwise the parsed page has them."""
    file = tmp_path / "audit.html"
    file.write_text(page(clean.audit()), encoding="utf-8")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "firefox"))), None)
    if browser is None:
        assert read(file.read_text()).seen.count("rect") == 3  # one day, two tables: as much as html.parser can check
        return

    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", file.as_uri()]
    done = completed(command, 60)
    assert done.stdout.count("<rect") == 3
