"""Each exit code, with the output that goes with it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from harness.desk import FAILS, OUTPUT, PATIENCE, WRITES, Desk, Said
from harness.patience import completed
from sparkonce.blocking import run
from sparkonce.cli.exits import ExitCode, code_of_error
from sparkonce.errors import InvalidInput, OutputUnavailable, SparkonceError, StoreFull, StoreUnavailable
from sparkonce.local import prepare
from sparkonce.model.record import HeldReason, Settling, State, Why
from sparkonce.store.protocol import Updated
from sparkonce.store.sqlite.store import SqliteStore


def test_a_job_runs_once_and_is_replayed(desk: Desk) -> None:
    """The first run succeeds and the second replays it with its date; both exit with 0, and one effect exists."""
    job = desk.job()
    fresh = desk.here("run", job)
    assert fresh.code == ExitCode.SUCCEEDED
    assert fresh.first == "succeeded: write/numbers@1, generation 1, attempt 1, 1 234 rows in numbers"
    assert f"ledger: sqlite:///{desk.ledger}" in fresh.err
    again = desk.here("run", job)
    assert again.code == ExitCode.SUCCEEDED
    assert again.first.startswith("replayed: generation 1 succeeded 2")
    assert again.first.endswith(", 1 234 rows in numbers")
    assert "greatest=1233" in again.out
    assert [slot.rows for slot in desk.commits()] == [1234]
    assert desk.attempts() == 1

    told = desk.here("run", job, "--json").told
    assert told["result"]["outputs"][0]["found"] == "present"
    shutil.rmtree(desk.folder / "lake")
    gone = desk.here("run", job)
    assert gone.code == ExitCode.RESULT_GONE
    assert gone.first.startswith("result gone: write/numbers@1: generation 1 succeeded, and its output numbers is gone")
    assert "what to do: sparkonce rerun write/numbers@1" in gone.out
    assert desk.here("run", job, "--json").told["phase"] == "ResultGone"
    assert desk.attempts() == 1

    second = desk.here("rerun", job)
    assert second.code == ExitCode.SUCCEEDED
    assert second.first == "succeeded: write/numbers@1, generation 2, attempt 1, 1 234 rows in numbers"
    third = desk.here("rerun", "write/numbers@1", "--json")
    assert (third.code, third.told["generation"], third.told["replayed"]) == (0, 3, False)


def test_a_replay_imports_nothing_heavy(desk: Desk) -> None:
    """Neither Spark, pandas, pyarrow, SQLAlchemy, a drawing library nor an event loop is imported, and nothing that drives a job: the
    ledger's result is read and printed without them."""
    desk.job()
    assert desk.here("run", "job.yaml").code == 0
    program = """
import sys
from sparkonce.cli.app import main
code = main(["run", "job.yaml"])
heavy = {"pyspark", "pandas", "pyarrow", "numpy", "sqlalchemy", "rich", "httpx", "asyncio", "ssl", "grpc", "kubernetes"}
heavy |= {f"sparkonce.{each}" for each in ("attempt.drive", "launch.local", "commands.remote", "cli.view.progress", "cli.keys")}
print(sorted(heavy & set(sys.modules)), code)
"""
    done = completed([sys.executable, "-c", program], PATIENCE)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stderr


def test_the_object_of_json(desk: Desk) -> None:
    """`--json` prints one object with every field that docs/cli.md lists, the same when fresh and when replayed except for `replayed`, and
    with the same fields after an error."""
    job = desk.job()
    told = [desk.here("run", job, "--json").told for _ in range(2)]
    fresh, again = told
    assert set(fresh) >= {
        "key",
        "keyHash",
        "generation",
        "attempt",
        "phase",
        "replayed",
        "evidence",
        "result",
        "reason",
    }
    assert (fresh["key"], fresh["generation"], fresh["attempt"]) == ("write/numbers@1", 1, 1)
    assert len(fresh["keyHash"]) == 64
    assert (fresh["phase"], fresh["exitCode"], fresh["paths"]) == ("Succeeded", 0, [])
    assert fresh["store"] == f"sqlite:///{desk.ledger}"
    assert fresh["result"]["values"] == {"greatest": 1233}
    [output] = fresh["result"]["outputs"]
    assert set(output) >= {"name", "uri", "rows", "bytes"}
    assert (output["name"], output["rows"]) == ("numbers", 1234)
    assert Path(output["uri"].removeprefix("file://")) == desk.folder / "lake" / "numbers"
    assert [each["replayed"] for each in told] == [False, True]
    assert again["result"]["finishedAt"] == fresh["result"]["finishedAt"]
    assert again["evidence"] == fresh["evidence"] == "slots committed by attempt 1"
    refused = desk.here("run", "nowhere.yaml", "--json").told
    assert refused.keys() == fresh.keys()
    assert {name for name, value in refused.items() if value} == {"reason", "exitCode"}


def test_a_failed_job(desk: Desk) -> None:
    """Exit 1 with class, message, location of the logs and their last lines; the failure is a result and is replayed."""
    job = desk.job(FAILS)
    said = desk.here("run", job)
    assert said.code == ExitCode.FAILED
    assert said.first.startswith("failed: write/numbers@1, generation 1, attempt 1")
    assert "Exited: the driver ended with exit code 1" in said.out
    assert "    the input is not there" in said.out
    folder = next(Path(f"{desk.ledger}.attempts").iterdir())
    assert f"stdout and stderr of attempt 1: {folder}" in said.out
    again = desk.here("run", job)
    assert again.code == ExitCode.FAILED
    assert again.first.startswith("replayed: generation 1 failed 2")
    told = desk.here("run", job, "--json").told
    assert (told["phase"], told["replayed"], told["result"]["failure"]["class"]) == ("Failed", True, "Exited")
    assert desk.attempts() == 1


def test_a_mismatch_names_what_differs(desk: Desk) -> None:
    """Exit 4 with the field's path or the file, and the remedy; a different executor memory is no mismatch."""
    template = {"arguments": ["--month", "1"], "driver": {"env": [{"name": "TZ", "value": "UTC"}]}}
    desk.job(FAILS, template=template, onMismatch="RejectAlways")
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED

    desk.job(FAILS, template={**template, "executor": {"memory": "9g"}})
    assert desk.here("run", "job.yaml").first.startswith("replayed")

    changes = {
        "spec.template.spec.arguments": {**template, "arguments": ["--month", "2"]},
        "spec.template.spec.driver.env": {**template, "driver": {"env": [{"name": "TZ", "value": "CET"}]}},
    }
    for path, changed in changes.items():
        desk.job(FAILS, template=changed, onMismatch="RejectAlways")
        said = desk.here("run", "job.yaml")
        assert said.code == ExitCode.MISMATCH, said.out
        assert f"  differs: {path}" in said.out
        assert "another revision or key" in said.out
        assert "`sparkonce rerun -f FILE`" in said.out
    desk.job(FAILS + "\nprint('one more line')", template=template, onMismatch="RejectAlways")
    said = desk.here("run", "job.yaml", "--json")
    assert (said.code, said.told["phase"]) == (ExitCode.MISMATCH, "Mismatch")
    assert said.told["paths"] == ["application file job.py"]
    assert desk.attempts() == 1


def test_the_remedy_of_a_mismatch_runs_what_the_file_says(desk: Desk) -> None:
    """`sparkonce rerun -f FILE` runs the changed script for a key that has succeeded, whereas `rerun KEY` would run the recorded one.
    Repeated in two processes, it opens one generation each time, and none in between."""
    desk.job()
    assert desk.here("run", "job.yaml").code == ExitCode.SUCCEEDED
    desk.job(WRITES.replace("1234", "7"))
    said = desk.here("run", "job.yaml")
    assert said.code == ExitCode.MISMATCH
    command = said.out[said.out.index("sparkonce rerun") :].split("`")[0].replace("FILE", "job.yaml").split()[1:]
    again = desk.here(*command, "--reason", "fewer rows")
    assert again.first == "succeeded: write/numbers@1, generation 2, attempt 1, 7 rows in numbers"
    events = desk.here("keys", "history", "write/numbers@1", "--json").told["events"]
    assert [each["why"] for each in events if each["what"] == "Reopened"] == ["fewer rows"]
    terminals = [desk.start("rerun", "-f", "job.yaml") for _ in range(2)]
    codes = sorted(each.end().code for each in terminals)
    assert codes[0] == ExitCode.SUCCEEDED
    generation = desk.here("keys", "show", "write/numbers@1", "--json").told["record"]["generation"]
    assert generation == 2 + codes.count(ExitCode.SUCCEEDED)
    assert desk.attempts() == generation


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_module_that_a_uri_names_is_part_of_the_job(desk: Desk, scheme: str) -> None:
    """A changed one is a mismatch, as one that a path names is. A pattern in its place is refused before anything is written."""
    module = desk.folder / "my lib.py"
    named = f"{scheme}{module.as_posix().replace(' ', '%20')}"
    module.write_text("x = 1")
    desk.job(template={"deps": {"pyFiles": [named.replace("my", "*")]}})
    said = desk.here("run", "job.yaml")
    assert (said.code, desk.ledger.exists()) == (ExitCode.INVALID, False)
    assert "deps.pyFiles[0]: " in said.err and "name one file of this machine" in said.err

    desk.job(template={"deps": {"pyFiles": [named]}})
    assert desk.here("run", "job.yaml").code == ExitCode.SUCCEEDED
    assert desk.here("run", "job.yaml").first.startswith("replayed")
    module.write_text("x = 2")
    said = desk.here("run", "job.yaml")
    assert (said.code, desk.attempts()) == (ExitCode.MISMATCH, 1)
    assert f"differs: py file {named}" in said.out
    assert desk.here("rerun", "-f", "job.yaml").code == ExitCode.SUCCEEDED


def test_a_module_that_an_earlier_release_did_not_read_is_a_mismatch(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record has no digest of the module: the job is not run a second time, and the answer names the module. Its rerun has one."""
    module = desk.folder / "lib.py"
    module.write_text("x = 1")
    read = prepare.contents_of
    with monkeypatch.context() as earlier:
        earlier.setattr(prepare, "contents_of", lambda *job, **how: dict(list(read(*job, **how).items())[:1]))
        desk.job(template={"deps": {"pyFiles": [module.as_uri()]}})
        assert desk.here("run", "job.yaml").code == ExitCode.SUCCEEDED
    said = desk.here("run", "job.yaml")
    assert (said.code, desk.attempts()) == (ExitCode.MISMATCH, 1)
    assert f"differs: py file {module.as_uri()}" in said.out
    assert desk.here("rerun", "-f", "job.yaml").code == ExitCode.SUCCEEDED
    assert desk.here("run", "job.yaml").first.startswith("replayed: generation 2")


def _edited_by_its_first_attempt(desk: Desk, monkeypatch: pytest.MonkeyPatch, edit: str) -> Said:
    """Runs a job whose first attempt edits a file of it and fails; what the command says once it gives up."""
    monkeypatch.setenv("SPARKONCE_PATIENCE", "0.1")
    fails = f"""
    from pathlib import Path

    if not Path("failed").exists():
        Path("failed").touch()
        {edit}
        raise SystemExit("the first attempt fails")
    """
    (desk.folder / "lib.py").write_text("x = 1")
    retry = {"maxAttempts": 2, "backoff": {"initial": "0s", "max": "0s"}}
    desk.job(fails + WRITES, template={"deps": {"pyFiles": ["lib.py"]}}, retry=retry)
    return desk.here("run", "job.yaml")


@pytest.mark.parametrize(
    ("file", "edit"),
    [
        ("job.py", "Path('job.py').open('a').write('# edited')"),
        ("lib.py", "Path('lib.py').open('a').write('# edited')"),
        ("lib.py", "Path('lib.py').unlink()"),
    ],
)
def test_an_attempt_does_not_run_an_edited_file(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, file: str, edit: str
) -> None:
    """It is not started, which costs it nothing, and the sentence names the file. Once that is restored, the same attempt runs."""
    said = _edited_by_its_first_attempt(desk, monkeypatch, edit)
    assert (said.code, desk.attempts(), desk.commits()) == (ExitCode.UNAVAILABLE, 1, [])
    assert (
        f"{desk.folder / file} is not what it was when write/numbers@1 was sent, so that attempt 2 was not" in said.err
    )

    script = desk.folder / "job.py"
    script.write_text(script.read_text().removesuffix("# edited"))
    (desk.folder / "lib.py").write_text("x = 1")
    said = desk.here("run", "job.yaml")
    assert said.first == "succeeded: write/numbers@1, generation 1, attempt 2, 1 234 rows in numbers"
    assert (len(desk.commits()), desk.attempts()) == (1, 2)


def test_an_edited_job_runs_once_the_run_of_the_other_one_is_ended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edited job is a mismatch; the commands that the sentence names end the run and run the edited job."""
    said = _edited_by_its_first_attempt(desk, monkeypatch, "Path('job.py').open('a').write('# edited')")
    assert desk.here("run", "job.yaml").code == ExitCode.MISMATCH
    cancel, rerun = re.findall("`sparkonce ([^`]*)`", said.err)
    desk.here(*cancel.split())
    said = desk.here(*rerun.replace("FILE", "job.yaml").split())
    assert said.first == "succeeded: write/numbers@1, generation 2, attempt 1, 1 234 rows in numbers"
    assert len(desk.commits()) == 1


@pytest.mark.parametrize("words", [(), ("write/numbers@1", "-f", "job.yaml")])
def test_a_rerun_names_one_thing(desk: Desk, words: tuple[str, ...]) -> None:
    """`rerun` with neither key nor file, or with both, is refused before anything is written."""
    desk.job()
    said = desk.here("rerun", *words)
    assert said.code == ExitCode.INVALID
    assert "either by its key or by its file with -f FILE" in said.err
    assert not desk.ledger.exists()


def test_a_corrected_job_takes_its_key(desk: Desk) -> None:
    """After a failure without effect the corrected script runs as the next generation, and the history says why. After a success, or with
    onMismatch: RejectAlways, a changed script is a mismatch."""
    desk.job(FAILS)
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED
    desk.job(WRITES, onMismatch="RejectAlways")
    assert desk.here("run", "job.yaml").code == ExitCode.MISMATCH
    desk.job(WRITES)
    assert "ended as Failed without effect" in desk.here("plan", "job.yaml").out
    said = desk.here("run", "job.yaml")
    assert (said.code, said.first) == (0, "succeeded: write/numbers@1, generation 2, attempt 1, 1 234 rows in numbers")
    assert [slot.rows for slot in desk.commits()] == [1234]
    told = desk.here("keys", "history", "write/numbers@1", "--json").told["events"]
    assert [each["why"] for each in told if each["what"] == "Reopened"] == [
        "another job takes the place of generation 1 (which took no effect)"
    ]
    desk.job(WRITES + "\nprint('another')")
    assert desk.here("run", "job.yaml").code == ExitCode.MISMATCH


def test_a_failed_opaque_job_keeps_its_key(desk: Desk) -> None:
    """The failed job ran, and what it did is unknown: a changed script is a mismatch."""
    desk.job(FAILS, outputs=[])
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED
    desk.job("print('corrected')", outputs=[])
    assert desk.here("run", "job.yaml").code == ExitCode.MISMATCH


def test_a_clients_key_is_for_one_operation_and_resource(desk: Desk) -> None:
    """With a key from the client, a duplicate gets the result, and a request with another operation or none is a mismatch; nothing runs
    again. A job that supersedes is recorded with its own operation."""
    desk.job(FAILS, idempotencyKey="order-7")
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED
    assert desk.here("run", "job.yaml").first.startswith("replayed")
    desk.job(FAILS, idempotencyKey="order-7", operation="remove", onMismatch="RejectAlways")
    said = desk.here("run", "job.yaml", "--json")
    assert (said.code, said.told["paths"]) == (ExitCode.MISMATCH, ["spec.operation"])
    desk.job(FAILS, idempotencyKey="order-7", operation=None, resource=None, onMismatch="RejectAlways")
    said = desk.here("run", "job.yaml", "--json")
    assert (said.code, said.told["paths"]) == (ExitCode.MISMATCH, ["spec.operation", "spec.resource"])
    assert desk.attempts() == 1
    desk.job(FAILS, idempotencyKey="order-7", operation="remove", onMismatch="Supersede")
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED
    record = desk.here("keys", "show", "order-7", "--json").told["record"]
    assert (record["operation"], record["resource"], record["generation"]) == ("remove", "numbers", 2)


def test_a_key_in_progress_elsewhere(desk: Desk) -> None:
    """onDuplicate: Reject exits with 6; Attach with --no-follow detaches with 130 and names the owner."""
    desk.job(onDuplicate="Reject")
    with desk.owned_elsewhere("pid 7 on elsewhere"):
        said = desk.here("run", "job.yaml")
        assert said.code == ExitCode.IN_PROGRESS
        assert "owned by pid 7 on elsewhere" in said.out
        assert desk.here("run", "job.yaml", "--json").told["phase"] == "Pending"
        desk.job(onDuplicate="Attach")
        said = desk.here("run", "job.yaml", "--no-follow")
        assert said.code == ExitCode.DETACHED
        assert said.first.startswith("detached: write/numbers@1 continues: ")
    assert desk.attempts() == 0


def test_a_held_key(desk: Desk) -> None:
    """Exit 5, with the reason and the command that resolves the key."""
    desk.job()
    with desk.owned_elsewhere() as (store, record, claim):
        settling = Settling(attempt=1, why=Why.EXITED, note="exit code 1")
        held = record.changed(state=State.HELD, held=HeldReason.PARTIAL, note="half of it is there", settling=settling)
        assert isinstance(run(store.update(record, claim, held)), Updated)
    said = desk.here("run", "job.yaml")
    assert said.code == ExitCode.HELD
    assert said.first == "held: write/numbers@1: Partial: half of it is there"
    assert "sparkonce keys resolve write/numbers@1 --reason TEXT --succeeded | --failed | --retry" in said.out
    assert desk.here("run", "job.yaml", "--json").told["phase"] == "Held"


def test_a_defect_leaves_a_sentence_and_a_file(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error is one sentence and exit code 70; its traceback is in the file that the sentence names."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("sparkonce.local.prepare.prepare", broken)
    desk.job()
    said = desk.here("run", "job.yaml", "--json")
    assert said.code == ExitCode.BROKEN
    assert len(said.err.splitlines()) == 1
    assert "ZeroDivisionError: of all things" in said.err
    place = said.err.split("details are in ")[1].split(";")[0]
    assert "Traceback" in Path(place).read_text()
    assert place.startswith(desk.environment["XDG_DATA_HOME"])
    assert said.told["exitCode"] == 70


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("x"), 2),
        (StoreUnavailable("x"), 3),
        (StoreFull("x", retry_after=1), 3),
        (OutputUnavailable("x"), 3),
        (OSError(28, "No space left on device"), 3),
    ],
)
def test_codes_of_errors(error: SparkonceError | OSError, code: int) -> None:
    """A request may be repeated after an error that proves nothing (3), and not after a wrong request (2)."""
    assert code_of_error(error) == code


def test_outputs_of_the_command_line_are_relative_to_the_current_folder(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--output NAME=DIR` is made absolute before key and fingerprint are computed: from another folder the same DIR is another job."""
    desk.job()
    elsewhere = desk.folder / "elsewhere"
    elsewhere.mkdir()
    told = desk.here("run", "job.yaml", "--output", "numbers=mine", "--json").told
    assert told["result"]["outputs"][0]["uri"] == f"file://{desk.folder}/mine"
    monkeypatch.chdir(elsewhere)
    said = desk.here("run", "../job.yaml", "--output", "numbers=mine", "--json")
    assert (said.code, said.told["paths"]) == (ExitCode.MISMATCH, ["spec.outputs.numbers.slotLog.path"])
    assert desk.here("run", "../job.yaml", "--output", "numbers=../mine").first.startswith("replayed")


def test_a_job_from_standard_input(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` reads the job file from standard input; its relative paths are relative to the current folder."""
    job = desk.job(WRITES.replace("numbers", "others"), outputs=[OUTPUT | {"name": "others"}])
    terminal = desk.start("run", job)
    assert terminal.end().code == 0
    text = (desk.folder / job).read_bytes()

    class Stdin:
        class buffer:  # noqa: N801 - the attribute has this name
            @staticmethod
            def read(_: int = -1) -> bytes:
                return text

    monkeypatch.setattr("sys.stdin", Stdin)
    said = desk.here("run", "-", "--json")
    assert said.told["replayed"], json.dumps(said.told)


@pytest.mark.parametrize("json", [False, True])
def test_an_end_that_the_ledger_does_not_have_is_not_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, json: bool
) -> None:
    """The rows are committed and the finalize never arrives: the command says that the ledger did not answer, and the next command prints
    the end."""
    desk.job()
    options = ("--json",) if json else ()
    with monkeypatch.context() as patch:

        async def lost(*_: object, **__: object) -> None:
            raise StoreUnavailable("no answer to finalize")

        patch.setenv("SPARKONCE_PATIENCE", "0.2")
        patch.setattr(SqliteStore, "finalize", lost)
        said = desk.here("run", "job.yaml", *options)
    assert said.code == ExitCode.UNAVAILABLE
    assert "no answer to finalize" in said.out + said.err
    assert "ucceeded" not in said.out
    with desk.store() as store:
        record = run(store.load(desk.prepared().address)).record
    assert record is not None
    assert (record.outcome, len(desk.commits())) == (None, 1)
    assert desk.here("run", "job.yaml", *options).code == ExitCode.SUCCEEDED
    assert (len(desk.commits()), desk.attempts()) == (1, 1)
