"""A driver seals an invalid intent, and a person decides about the key."""

from __future__ import annotations

import pytest

from harness.desk import WRITES, Desk
from sparkonce.cli.exits import ExitCode

FORGES = """
    import os, sys
    from harness.arrow_stage import arrow_stage, table_of
    from harness.forged import file_of, forgeries, intent_for
    from sparkonce.driver.current import current
    from sparkonce.model.record import Intent

    job = current(stager=arrow_stage)
    of = job.assignment
    folder = f"_data/{of.key_hash}-numbers-g{of.generation}/{of.attempt:010d}-n1"
    sound = intent_for(of, output="numbers").slots["numbers"]
    job.channel.seal(Intent(token=of.attempt, slots={"numbers": forgeries(sound, folder)["NAME"]}))
    sys.exit(1)
"""
FORGERIES = ("a token that closes two billion slots", "a file above the table", "rows that no file has")


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_seal_holds_its_key_and_a_person_ends_it(desk: Desk, name: str) -> None:
    """Held(Stuck) with the field, and nothing committed. A retry and "succeeded" are refused, "failed" is accepted, and then the key's next
    run with a correct driver has its effect."""
    job = desk.job(FORGES.replace("NAME", name))
    held = desk.here("run", job)
    assert held.code == ExitCode.HELD
    assert "the transaction's slots.numbers" in held.out
    assert desk.commits() == []
    assert (
        desk.here("keys", "resolve", "write/numbers@1", "--retry", "--reason", "again", "--yes").code
        == ExitCode.INVALID
    )
    assert (
        desk.here("keys", "resolve", "write/numbers@1", "--succeeded", "--reason", "so", "--yes").code
        == ExitCode.INVALID
    )
    assert desk.commits() == []
    failed = desk.here("keys", "resolve", "write/numbers@1", "--failed", "--reason", "forged", "--yes")
    assert failed.code == ExitCode.SUCCEEDED, failed
    desk.job(WRITES)
    again = desk.here("rerun", job)
    assert again.code == ExitCode.SUCCEEDED, again
    assert [slot.rows for slot in desk.commits()] == [1234]


def test_a_cancel_of_a_forged_seal_names_the_remedy(desk: Desk) -> None:
    """Cancelling answers at once that the key is held, with the command that the test above executes."""
    job = desk.job(FORGES.replace("NAME", FORGERIES[0]))
    assert desk.here("run", job).code == ExitCode.HELD
    cancelled = desk.here("cancel", "write/numbers@1", "--reason", "forged")
    assert cancelled.code == ExitCode.HELD
    assert "sparkonce keys resolve write/numbers@1 --reason TEXT --failed" in cancelled.out
    assert desk.commits() == []
