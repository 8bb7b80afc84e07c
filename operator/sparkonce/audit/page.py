"""Renders the report as one self-contained HTML page: no scripts, fonts or images from elsewhere, so it can be stored with the data.

Plots are inline SVG. Three bar charts do not justify a plotting library in every job image.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape

from sparkonce.audit.groups import FindingGroup, Names, name_of, with_keys
from sparkonce.audit.report import AuditReport

SHOWN = 1000
"""Maximum groups of findings on the page; the JSON has all."""
LISTED = 100
"""Maximum members of a group on the page."""
BARS = 40
"""Maximum bars per plot; the greatest are drawn, or the newest days."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5d6b7a; --line: #d7dde4; --paper: #fff; --bar: #3b6fb5;
  --defect: #b3261e; --attention: #9a6700; --note: #5d6b7a; --clean: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9aa7b4; --line: #343d47; --paper: #14181d; --bar: #6aa0e8;
  --defect: #ff8a80; --attention: #e3b341; --note: #9aa7b4; --clean: #56d364; } }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { margin: .2rem 0; } .soft { color: var(--soft); } .defect { color: var(--defect); } .attention { color: var(--attention); }
.note { color: var(--note); } .clean { color: var(--clean); } .wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg rect { fill: var(--bar); }
svg .soft { fill: var(--soft); } .plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1.5rem; }
"""


def page(report: AuditReport) -> str:
    """The report as a complete HTML document."""
    colour = "defect" if report.defects else "clean" if report.complete else "attention"
    days: Counter[str] = Counter()
    for table in report.tables:
        days.update(table.days)
    rows = Counter({f"{table.kind} {_end(table.uri)}": table.rows for table in report.tables})
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.started))
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Audit: {escape(report.verdict)}</title><style>{_STYLE}</style></head><body>",
        f'<h1 class="{colour}">{escape(report.verdict)}</h1>',
        f'<p class="soft">{when}; ledger: {escape(report.ledger or "none")}</p>',
        '<div class="plots">',
        _plot("Commits per day (UTC)", dict(sorted(days.items())[-BARS:])),
        _plot("Rows per table", dict(rows.most_common(BARS))),
        _plot("Findings by kind", report.counts()),
        "</div>",
        _findings(report),
        _tables(report),
        _cost(report),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _findings(report: AuditReport) -> str:
    if not report.findings:
        return '<h2>Findings</h2><p class="clean">None.</p>'
    groups = report.groups
    rows = [_group(group, report.names) for group in groups[:SHOWN]]
    more = len(groups) - SHOWN
    rest = f'<p class="soft">and {more} more kinds and tables in the JSON</p>' if more > 0 else ""
    return f"<h2>Findings</h2>{_table(('severity', 'what', 'count', 'where', 'found', 'what to do'), rows)}{rest}"


def _group(group: FindingGroup, names: Names) -> tuple[str, ...]:
    first, count = group.first, len(group.findings)
    known = f" (known: {first.known})" if first.known else ""
    found = escape(with_keys(first.what, names))
    if count > 1:
        listed = "".join(f"<li>{escape(name_of(each, names))}</li>" for each in group.findings[:LISTED])
        rest = f"<li>and {count - LISTED} more in the JSON</li>" if count > LISTED else ""
        found = f"the first: {found}<details><summary>{escape(group.names(names))}</summary><ul>{listed}{rest}</ul></details>"
    return (
        f'<span class="{first.severity}">{first.severity}</span>',
        escape(f"{first.kind}{known}"),
        _number(count),
        escape(first.where if count == 1 else first.table or group.realm),
        found,
        escape(first.todo),
    )


def _tables(report: AuditReport) -> str:
    rows = [
        (
            escape(table.kind),
            escape(table.uri),
            *(_number(n) for n in (table.effects, table.visible, table.rows)),
            "not counted" if table.rows_seen is None else _number(table.rows_seen),
            *(_number(n) for n in (table.files, table.bytes, table.staged)),
        )
        for table in report.tables
    ]
    heads = ("kind", "table", "commits", "visible", "rows", "rows readers see", "files", "bytes", "orphan folders")
    return f"<h2>Tables</h2>{_table(heads, rows)}"


def _cost(report: AuditReport) -> str:
    cost = report.cost
    rows = [
        (
            "time",
            f"{cost.seconds:.2f} s, of which listing {cost.listing_seconds:.2f} s, reading files {cost.reading_seconds:.2f} s",
        ),
        (
            "files read",
            f"{cost.files}, {cost.files_per_second:.0f} per second{', every page of them' if report.deep else ''}",
        ),
        ("peak memory", f"{cost.peak_bytes / 1e6:.0f} MB, of which {cost.base_bytes / 1e6:.0f} MB before the audit"),
    ]
    if cost.seconds_per_million is not None and cost.bytes_per_million is not None:
        rows.append(
            (
                "slope",
                f"{cost.seconds_per_million:.0f} s and {cost.bytes_per_million / 1e9:.1f} GB at 1 000 000 files like these",
            )
        )
    return f"<h2>Cost</h2>{_table(('', ''), [tuple(map(escape, row)) for row in rows])}"


def _table(heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    number = text.replace(" ", "").isdecimal()
    return f'<td class="number">{text}</td>' if number else f"<td>{text}</td>"


def _number(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _end(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2]


def _plot(title: str, values: Mapping[str, int]) -> str:
    """A horizontal bar chart, so that names stay readable."""
    height, left, width = 22, 150, 420
    greatest = max(values.values(), default=0)
    lines = []
    for at, (name, value) in enumerate(values.items()):
        y, long = at * height, (width - left - 70) * value / greatest if greatest else 0
        short = name if len(name) <= 22 else f"{name[:10]}...{name[-9:]}"
        lines.append(
            f'<text x="{left - 6}" y="{y + 15}" text-anchor="end">{escape(short)}</text>'
            f'<rect x="{left}" y="{y + 4}" width="{max(long, 1):.1f}" height="14" rx="2"><title>{escape(name)}: {value}</title></rect>'
            f'<text class="soft" x="{left + max(long, 1) + 6:.1f}" y="{y + 15}">{_number(value)}</text>'
        )
    if not lines:
        return f'<figure><h2>{escape(title)}</h2><p class="soft">nothing to show</p></figure>'
    head = f'<figure style="margin:0"><h2>{escape(title)}</h2>'
    box = f'<svg viewBox="0 0 {width} {len(values) * height + 4}" role="img" aria-label="{escape(title)}">'
    return f"{head}{box}{''.join(lines)}</svg></figure>"
