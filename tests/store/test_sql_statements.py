"""Tables and statements of the two SQL stores, as texts: what the hand-written files must keep and have in common."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import pytest

from sparkonce.model.record import State
from sparkonce.store.postgres import schema as postgres
from sparkonce.store.sqlite import schema as sqlite

ONLY_SQLITE = {"move", "touch claim", "touch lease"}
"""PostgreSQL counts revisions with `advance`, and its claims live by their leases alone."""
OF_LAYOUT_1 = {
    "sqlite": "ef0826a8e330a95a89e645fdd7eae552607797bf1d00d5c7482a196a63650c48",
    "postgres": "2b105789c125587058cc3d37aef29611ca6800a80b10516ebff43e7a81b59984",
}


def parameters(statement: str) -> set[str]:
    """The parameters of a statement, `:name` for one driver and `%(name)s` for the other."""
    return {sqlite_name or name for sqlite_name, name in re.findall(r"(?<!:):([a-z]\w*)|%\((\w+)\)s", statement)}


def test_statements_of_one_name_take_the_same_parameters() -> None:
    """`store.ledger` runs a statement by its name on either store, so both must take the same parameters."""
    assert sqlite.STATEMENTS.keys() - postgres.STATEMENTS.keys() == ONLY_SQLITE
    shared = (sqlite.STATEMENTS.keys() & postgres.STATEMENTS.keys()) - {
        "has meta"
    }  # each database reads its own catalog instead
    assert {name: parameters(sqlite.STATEMENTS[name]) for name in shared} == {
        name: parameters(postgres.STATEMENTS[name]) for name in shared
    }


@pytest.mark.parametrize("statements", [sqlite.STATEMENTS, postgres.STATEMENTS], ids=["sqlite", "postgres"])
def test_a_listing_knows_every_state(statements: Mapping[str, str]) -> None:
    """`list` has a parameter for each state, and counts any other state as unknown."""
    listing = statements["list"]
    assert {name for name in parameters(listing) if name.startswith("state")} == {
        f"state{number}" for number in range(len(State))
    }
    assert ", ".join(f"'{state.value}'" for state in State) in listing


@pytest.mark.parametrize(
    ("store", "layout", "tables"),
    [("sqlite", sqlite.LAYOUT, sqlite.TABLES), ("postgres", postgres.LAYOUT, postgres.TABLES)],
)
def test_the_tables_of_a_layout_never_change(store: str, layout: int, tables: Sequence[str]) -> None:
    """Existing ledgers have these tables (layout 1): changing a table needs a new layout number and a migration."""
    unspaced = sorted(re.sub(r"\s*([(),])\s*", r"\1", " ".join(table.split())) for table in tables)
    assert layout == 1
    assert hashlib.sha256("\n".join(unspaced).encode()).hexdigest() == OF_LAYOUT_1[store]
