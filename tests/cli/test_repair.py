"""`sparkonce keys repair`: each remedy that is printed for a damaged record is followed, and the key continues with one effect."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3

from harness.desk import WRITES, Desk, Said
from sparkonce.cli.exits import ExitCode
from sparkonce.model import identity

KEY = "write/numbers@1"
RUN_ID = "spark.openlineage.parentRunId"


def damage(desk: Desk, table: str = "records", text: str = '{"schema":1,') -> None:
    with sqlite3.connect(desk.ledger) as ledger:
        assert ledger.execute(f"UPDATE {table} SET body = ?", (text,)).rowcount > 0


def remedy(said: str) -> list[str]:
    """The command in the sentence, with a reason filled in."""
    found = re.search(r"sparkonce (keys repair [0-9a-f]{20}(?: --forget)? --reason TEXT)", said)
    assert found, said
    return shlex.split(found[1].replace("TEXT", "'the disk lost a block'"))


def files(desk: Desk) -> list[str]:
    return sorted(str(path) for path in (desk.folder / "lake").rglob("*.parquet"))


def test_a_damaged_record_of_a_finished_key_is_rebuilt_with_its_result(desk: Desk) -> None:
    """Every command names the remedy; after it the job gets the same result, and nothing ran again."""
    desk.job()
    first = desk.here("run", "job.yaml", "--json").told
    written = files(desk)
    damage(desk)
    for command in (["run", "job.yaml"], ["keys", "show", KEY], ["keys", "explain", KEY], ["rerun", "job.yaml"]):
        said = desk.here(*command)
        assert said.code == ExitCode.UNAVAILABLE, said.err
        assert remedy(said.err) == remedy(desk.here("keys", "list").out)

    said = desk.here(*remedy(desk.here("run", "job.yaml").err), "--yes")
    assert said.code == 0, said.err
    assert said.out.strip() == f"repaired: {KEY}, generation 1: Succeeded, as its result says"

    again = desk.here("run", "job.yaml", "--json").told
    assert (again["replayed"], again["result"]) == (True, first["result"])
    assert files(desk) == written
    last = desk.here("keys", "history", KEY, "--json").told["events"][-1]
    assert (last["what"], last["why"]) == ("Repaired", "the disk lost a block")
    assert desk.here("doctor", "--json").code == 0


def test_a_rebuilt_record_is_the_same_job_to_another_script(desk: Desk) -> None:
    """Key and fingerprint are derived again from the job: a changed script is a mismatch, as before."""
    desk.job()
    assert desk.here("run", "job.yaml").code == 0
    damage(desk, text="")
    assert desk.here("keys", "repair", KEY, "--reason", "x", "--yes").code == 0
    desk.job(WRITES + "\nprint('another script')")
    assert desk.here("run", "job.yaml").code == ExitCode.MISMATCH


def test_without_its_job_a_record_is_only_removed(desk: Desk) -> None:
    """The refusal names the other way, removal, which leaves the generation's number used: the next run is generation 2."""
    desk.job()
    assert desk.here("run", "job.yaml").code == 0
    damage(desk)
    damage(desk, "specs")
    refused = desk.here("keys", "repair", KEY, "--reason", "x", "--yes")
    assert refused.code == ExitCode.INVALID
    assert "cannot be rebuilt" in refused.err

    said = desk.here(*remedy(refused.err), "--yes")
    assert said.code == 0, said.err
    assert "runs as generation 2" in said.out
    again = desk.here("run", "job.yaml", "--json").told
    assert (again["generation"], again["replayed"]) == (2, False)


def test_what_must_not_be_repaired_is_refused(desk: Desk) -> None:
    """Refused: a record that can be read, removing one that can be rebuilt, a missing one, and a command without confirmation."""
    desk.job()
    assert desk.here("run", "job.yaml").code == 0
    assert "no record of" in desk.here("keys", "repair", KEY, "--reason", "x", "--yes").err
    damage(desk)
    forgetting = desk.here("keys", "repair", KEY, "--forget", "--reason", "x", "--yes")
    assert forgetting.code == ExitCode.INVALID
    assert "leave out --forget" in forgetting.err
    assert "--yes" in desk.here("keys", "repair", KEY, "--reason", "x").err
    assert desk.here("keys", "repair", "nobody", "--reason", "x", "--yes").code == ExitCode.INVALID
    assert desk.here("keys", "repair", KEY, "--yes").code == ExitCode.INVALID  # without a reason
    assert desk.here("keys", "repair", KEY, "--reason", "x", "--yes", "--json").told["state"] == "Finalized"


def test_a_newer_versions_record_is_left_to_it(desk: Desk) -> None:
    """This version cannot know what the record says: nothing is written, and the sentence says to upgrade."""
    desk.job()
    assert desk.here("run", "job.yaml").code == 0
    damage(desk, text='{"minReader": 1000}')
    said = desk.here("keys", "repair", KEY, "--reason", "x", "--yes")
    assert said.code == ExitCode.UNAVAILABLE
    assert "upgrade sparkonce" in said.err


def test_a_key_of_the_version_before_is_replayed_and_repaired(desk: Desk) -> None:
    """A key that version 1 recorded, with a run id in its settings: the same document gets the result, even after its record was rebuilt.
    Another run id is another job, as it was then, and the mismatch names only that setting."""

    def send(run: str) -> Said:
        desk.job(template={"sparkConf": {RUN_ID: run}})
        return desk.here("run", "job.yaml", "--json")

    assert send("1").code == 0
    as_by_version_1(desk)
    assert send("1").told["replayed"] is True
    other = send("2")
    assert (other.code, other.told["paths"]) == (ExitCode.MISMATCH, [f'spec.template.spec.sparkConf["{RUN_ID}"]'])

    damage(desk)
    assert desk.here("keys", "repair", KEY, "--reason", "x", "--yes").code == 0
    assert send("1").told["replayed"] is True
    assert send("2").code == ExitCode.MISMATCH


def as_by_version_1(desk: Desk) -> None:
    """Rewrites record and spec as version 1 wrote them."""
    job = desk.prepared()
    with sqlite3.connect(desk.ledger) as ledger:
        record = json.loads(ledger.execute("SELECT body FROM records").fetchone()[0])
        spec = json.loads(ledger.execute("SELECT body FROM specs").fetchone()[0])
        assert record["fingerprintVersion"] == 2
        record |= {"fingerprint": job.fingerprints[1], "fingerprintVersion": 1}
        secret = bytes.fromhex(spec["secret"])
        spec["digests"] = identity.path_digests(job.job, secret=secret, contents=job.contents, version=1)
        ledger.execute("UPDATE records SET body = ?", (json.dumps(record),))
        ledger.execute("UPDATE specs SET body = ?", (json.dumps(spec),))
