"""A driver whose program has ended while a thread keeps its process alive: once every declared output is committed, it is stopped and the
job succeeds."""

from __future__ import annotations

import textwrap

import pytest

from harness.desk import OUTPUT, PATIENCE, WRITES, Desk
from harness.eventually import assert_eventually
from sparkonce.attempt.decide import LINGERING
from sparkonce.launch.local import locked

KEY = "write/numbers@1"
STAYS = """
    import threading, time
    from pathlib import Path

    def stay():
        while not Path("go").exists():
            time.sleep(0.02)  # polls until the test ends

    threading.Thread(target=stay).start()
"""
"""Suffix of a script: a thread that runs until the test ends."""
ENDS_LATER = """
    import threading, time
    from pathlib import Path

    def end():
        time.sleep(4)  # longer than its lingerSeconds, 1
        Path("ended").touch()

    threading.Thread(target=end).start()
"""
GOES_ON = """
    import time

    time.sleep(3)  # longer than its lingerSeconds, 1
    job.result(last="word")
"""
REPORTS = """
    import threading, time
    from pathlib import Path

    def report():
        for number in range(20):
            time.sleep(0.2)  # 20 times is twice its lingerSeconds, 2
            job.result(number=number)
            Path("reported").write_text(str(number))
        while not Path("go").exists():
            time.sleep(0.02)  # polls until the test ends

    threading.Thread(target=report).start()
"""
"""Suffix of a script: a thread that reports for longer than lingerSeconds, and then stays."""


def script(*parts: str) -> str:
    return "".join(textwrap.dedent(part) for part in parts)


def test_a_job_that_a_thread_keeps_has_succeeded(desk: Desk) -> None:
    """All outputs are committed and the program has ended: after lingerSeconds the job is Succeeded with what it reported, and its process
    is gone. Until then `keys explain` says what it waits for. A duplicate gets the result."""
    desk.job(script(WRITES, STAYS), lingerSeconds=4)
    leader = desk.start("run", "job.yaml", "--json")

    def explained() -> bool:
        said = desk.here("keys", "explain", KEY, "--json")
        return said.code == 0 and LINGERING in said.told["evidence"]

    assert_eventually(explained, PATIENCE)
    said = leader.end()
    assert (said.code, said.told["phase"], said.told["attempt"]) == (0, "Succeeded", 1), said
    assert said.told["result"]["values"] == {"greatest": 1233}
    assert LINGERING in said.err
    assert [slot.rows for slot in desk.commits()] == [1234]
    [folder] = desk.ledger.with_name(f"{desk.ledger.name}.attempts").iterdir()
    assert not locked(folder)
    assert desk.here("run", "job.yaml", "--json").told["replayed"] is True


def test_a_program_that_goes_on_is_not_stopped(desk: Desk) -> None:
    """Everything is committed, and the main thread runs for longer than lingerSeconds: its last report is in the result."""
    desk.job(script(WRITES, GOES_ON), lingerSeconds=1)
    said = desk.start("run", "job.yaml", "--json").end()
    assert (said.code, said.told["result"]["values"]) == (0, {"greatest": 1233, "last": "word"}), said


@pytest.mark.further
def test_a_thread_that_reports_after_the_program_is_not_stopped(desk: Desk) -> None:
    """Each of its reports restarts lingerSeconds, and all of them are in the result. A driver that a busy machine kept from reporting for
    that long is stopped rightly; then the next generation is looked at."""
    desk.job(script(WRITES, REPORTS), lingerSeconds=2)
    reported = desk.folder / "reported"
    for generation in (1, 2, 3):
        reported.write_text("-1")
        said = desk.start(*(("run", "job.yaml") if generation == 1 else ("rerun", KEY)), "--json").end()
        assert (said.code, said.told["generation"], said.told["attempt"]) == (0, generation, 1), said
        result = said.told["result"]
        assert result["values"]["greatest"] == 1233
        last = result["values"].get("number", -1)
        assert last - int(reported.read_text()) in (0, 1), "a report is not in the result"
        assert [slot.rows for slot in desk.commits()] == [1234] * generation
        if last == 19:
            return
    raise AssertionError("each of three drivers was stopped before its last report")


@pytest.mark.further
def test_a_program_that_ended_before_its_outputs_is_waited_for(desk: Desk) -> None:
    """The second output is not committed, so the job may not be done, and its thread is not stopped after lingerSeconds."""
    second = {"name": "more", "slotLog": {"path": "lake/more"}}
    desk.job(script(WRITES, ENDS_LATER), lingerSeconds=1, outputs=[OUTPUT, second])
    said = desk.start("run", "job.yaml", "--json").end()
    assert said.code != 0, said
    assert (desk.folder / "ended").exists()
