"""Every mistake in a request or its environment ends in one sentence that says where it is, the right exit code, no traceback, and nothing
started.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from harness import effort
from harness.desk import OUTPUT, PATIENCE, WRITES, Desk, Said
from harness.patience import completed
from sparkonce.cli.app import main
from sparkonce.cli.exits import ExitCode

TEMPLATE = {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication"}


def refused(desk: Desk, *arguments: str) -> Said:
    """Runs the command and checks what all refusals have in common."""
    said = desk.here(*arguments)
    sentence = said.err.splitlines()[-1]
    assert sentence.startswith("sparkonce: ")
    assert said.err.count("sparkonce: ") == 1
    assert said.out == ""
    told = desk.here(*arguments, "--json")
    assert (told.told["phase"], told.told["exitCode"], told.code) == (None, said.code, said.code)
    assert f"sparkonce: {told.told['reason']}" in told.err
    assert desk.attempts() == 0
    return Said(said.code, said.out, sentence)


def edit(desk: Desk, change: Callable[[dict[str, object]], None]) -> None:
    """Changes `spec` in job.yaml."""
    path = desk.folder / "job.yaml"
    document = yaml.safe_load(path.read_text())
    change(document["spec"])
    path.write_text(yaml.safe_dump(document))


def test_broken_yaml(desk: Desk) -> None:
    """The sentence has file and line."""
    (desk.folder / "job.yaml").write_text("apiVersion: sparkonce.dev/v1alpha1\nkind: [IdempotentJob\n")
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.INVALID
    assert "job.yaml:" in said.err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"onDuplicte": "Attach"}, ["spec.onDuplicte", "did you mean onDuplicate?"]),
        ({"retry": {"maxAttempts": 0}}, ["spec.retry.maxAttempts", "at least 1"]),
        ({"resource": None}, ["spec.resource", "is required"]),
        (
            {"outputs": [{"name": "numbers", "delta": {"path": "gopher://lake/x"}}]},
            ["spec.outputs[numbers].delta.path", "unsupported scheme `gopher:`"],
        ),
        (
            {"outputs": [{"name": "numbers", "iceberg": {"catalog": "c", "table": "t"}}]},
            ["spec.outputs[numbers].iceberg", "a table in a namespace"],
        ),
        (
            {"outputs": [{"name": "numbers", "slotLog": {"path": "s3://"}}]},
            ["spec.outputs[numbers].slotLog.path", "s3://"],
        ),
        ({"resource": "numbers/${params.month}"}, ["spec.resource", "--param month=VALUE"]),
        (
            {"template": {**TEMPLATE, "spec": {"sparkConf": {"spark.kubernetes.namespace": "kube-system"}}}},
            ['spec.template.spec.sparkConf["spark.kubernetes.namespace"]: must be absent', "remove it"],
        ),
    ],
)
def test_a_field_that_is_wrong(desk: Desk, change: dict[str, object], told: list[str]) -> None:
    """The sentence has the field's path."""
    desk.job()
    edit(desk, lambda spec: spec.update(change))
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.INVALID
    for part in told:
        assert part in said.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--param", "month=1"], "--param month"),
        (["--param", "month"], "--param NAME=VALUE"),
        (["--param", "a=1", "--param", "a=2"], "given twice"),
        (["--output", "orders=x"], "--output orders"),
        (["--output", "numbers"], "--output NAME=DIR"),
        (["--store", "redis://here"], "redis://here"),
        (["--store", "redis://[here"], "the address of a store that is not a URL"),
        (["--store", "mysql://user:hidden@here/db"], "mysql://here/db"),
        (["--wrong"], "`sparkonce run --help` shows how"),
    ],
)
def test_an_option_that_is_wrong(desk: Desk, arguments: list[str], told: str) -> None:
    """The sentence names the option; no password is repeated."""
    desk.job()
    said = refused(desk, "run", "job.yaml", *arguments)
    assert said.code == ExitCode.INVALID
    assert told in said.err
    assert "hidden" not in said.err


MANIFEST = """
apiVersion: sparkonce.dev/v1alpha1
kind: IdempotentJob
metadata: {name: numbers}
spec:
  operation: write
  resource: numbers
  %(job)s
  template:
    apiVersion: sparkoperator.k8s.io/v1beta2
    kind: SparkApplication
    spec:
      mainApplicationFile: job.py
      %(template)s
"""
NUL, EQUALS = "which has a NUL character in it", "must not contain"
DIGITS, LONG = "is a number that Kubernetes does not keep digit by digit; put it in quotes", "must be at most 36500d"
HEX = "0x" + "f" * 5000  # more digits than Python converts to text; kubectl reads it as text
FORMS = {
    # in the template: the path of the field, and the sentence about it
    "arguments: [!!timestamp 2013-01-01]": ("arguments[0]", "has the YAML tag"),
    "arguments: [!!binary aGVsbG8=]": ("arguments[0]", "has the YAML tag"),
    "sparkConf: !!set {a, b}": ("sparkConf", "has the YAML tag"),
    "sparkConf: !!omap [a: 1]": ("sparkConf", "has the YAML tag"),
    "sparkConf: !!python/object:os.system {a: 1}": ("sparkConf", "has the YAML tag"),
    "arguments: [!!int abc]": ("arguments[0]", "is 'abc', which is not of type int"),
    "arguments: [!!float '']": ("arguments[0]", "is '', which is not of type float"),
    "arguments: [!!bool abc]": ("arguments[0]", "is 'abc', which is not of type bool"),
    "arguments: [08]": ("arguments[0]", "must be text, not 8; put it in quotes"),
    "hadoopConf: {a: true}": ("hadoopConf.a", "must be text, not true; put it in quotes"),
    "driver: {env: [{name: a, value: }]}": ("driver.env[0].value", "must be text, not empty; put it in quotes"),
    "sparkConf: {<<: 1}": ('sparkConf["<<"]', "must be a map, or a list of maps"),
    "sparkConf: &a {<<: *a}": ('sparkConf["<<"]', "refers to itself"),
    "volumes: &a [*a]": ("volumes[0]", "refers to itself"),
    "sparkConf: {true: a}": ("sparkConf", "has the key true, which YAML does not read as text"),
    "sparkConf: {[a]: b}": ("sparkConf", "has a key that is not text"),
    "arguments: [" + "9" * 300 + "]": ("arguments[0]", DIGITS),
    "executor: {instances: " + "9" * 300 + "}": ("executor.instances", DIGITS),
    "sparkConf: {a: 0xffffffffffffffff}": ("sparkConf.a", DIGITS),
    "arguments: [9007199254740993.0]": ("arguments[0]", DIGITS),
    "arguments: [.nan]": ("arguments[0]", "is .nan, which is not a JSON number"),
    r'arguments: ["\ud800"]': ("arguments[0]", "is not readable as YAML"),
    r'sparkConf: {"\ud800": x}': ("sparkConf", "is not readable as YAML"),
    r'arguments: ["\U00110000"]': ("arguments[0]", "is not readable as YAML"),
    "volumes: " + "[" * 40 + "]" * 40: ("volumes" + "[0]" * 27, "is nested more than 31 levels deep"),
    r'arguments: ["a\0b"]': ("arguments[0]", NUL),
    r'arguments: ["${params.a:-\0}"]': ("arguments[0]", NUL),
    r'mainClass: "a\0b"': ("mainClass", NUL),
    r'driver: {javaOptions: "a\0b"}': ("driver.javaOptions", NUL),
    r'deps: {jars: ["a\0b"]}': ("deps.jars[0]", NUL),
    r'sparkConf: {"a\0b": x}': ("sparkConf", NUL),
    r'hadoopConf: {a: "x\0"}': ("hadoopConf.a", NUL),
    r'driver: {env: [{name: "a\0b", value: x}]}': ("driver.env[0].name", NUL),
    r'driver: {env: [{name: ab, value: "x\0"}]}': ("driver.env[0].value", NUL),
    r'executor: {envVars: {"a\0b": x}}': ("executor.envVars", NUL),
    'sparkConf: {"a=b": x}': ('sparkConf["a=b"]', EQUALS),
    'hadoopConf: {"a=b": x}': ('hadoopConf["a=b"]', EQUALS),
    'driver: {env: [{name: "a=b", value: x}]}': ("driver.env[0].name", EQUALS),
    'driver: {envVars: {"a=b": x}}': ('driver.envVars["a=b"]', EQUALS),
    'executor: {env: [{name: "a=b", value: x}]}': ("executor.env[0].name", EQUALS),
    'driver: {env: [{name: "", value: x}]}': ("driver.env[0].name", "must have a name that is not empty"),
    'sparkConf: {"": x}': ('sparkConf[""]', "must have a name that is not empty"),
    'deps: {jars: ["file://[x"]}': ("deps.jars[0]", "is 'file://[x', which is neither a path nor a URL"),
    'deps: {pyFiles: ["file:/a%00b"]}': ("deps.pyFiles[0]", "is 'file:/a%00b', which is neither a path nor a URL"),
}
JOB_FORMS = {
    # the same in spec
    f"stopTimeoutSeconds: {HEX}": ("stopTimeoutSeconds", "must be a whole number, not '0xfff"),
    "stopTimeoutSeconds: 1e30": ("stopTimeoutSeconds", DIGITS),
    "retention: {succeeded: " + "9" * 31 + "d}": ("retention.succeeded", LONG),
    "retry: {backoff: {max: 36501d}}": ("retry.backoff.max", LONG),
    "applicationTTL: {failed: 99999999d}": ("applicationTTL.failed", LONG),
    "outputs: [{name: no1, slotLog: {path: o}, expect: {minRows: 9223372036854775808}}]": (
        "outputs[0].expect.minRows",
        DIGITS,
    ),
    "outputs: [{name: n, slotLog: {path: o}}]": ("outputs[0].name", "must be text, not false; put it in quotes"),
    "outputs: [{name: no1, slotLog: {path: 'file://[x'}}]": ("outputs[no1].slotLog.path", "file://[x is not a URL"),
    r'outputs: [{name: no1, slotLog: {path: "a\0"}}]': ("outputs[0].slotLog.path", NUL),
    r'outputs: [{name: "a\0", slotLog: {path: a}}]': ("outputs[0].name", NUL),
    r'outputs: [{name: no1, slotLog: {path: o}, expect: {columns: ["a\0"]}}]': ("outputs[0].expect.columns[0]", NUL),
    r'tunableArguments: ["--a\0"]': ("tunableArguments[0]", NUL),
}


UNTAKEN = [
    *(
        (MANIFEST % {"job": "", "template": form}, f"spec.template.spec.{path}", told)
        for form, (path, told) in FORMS.items()
    ),
    *((MANIFEST % {"job": form, "template": ""}, f"spec.{path}", told) for form, (path, told) in JOB_FORMS.items()),
]


@pytest.mark.parametrize(
    ("text", "path", "sentence"),
    effort.sampled(UNTAKEN),
    ids=effort.sampled([form[:50] for form in [*FORMS, *JOB_FORMS]]),
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_what_no_ledger_or_process_takes(desk: Desk, command: str, text: str, path: str, sentence: str) -> None:
    """Exit 2 with the field's path, planned or run, and nothing is reserved."""
    desk.job()
    (desk.folder / "job.yaml").write_text(text)
    said = refused(desk, command, "job.yaml")
    assert said.code == ExitCode.INVALID
    assert f" {path}: " in said.err
    assert sentence in said.err
    assert reserved(desk) == 0


def reserved(desk: Desk) -> int:
    """Number of records in the ledger's file, 0 if there is none."""
    if not desk.ledger.exists():
        return 0
    with sqlite3.connect(desk.ledger) as database:
        [[count]] = database.execute("SELECT count(*) FROM records").fetchall()
    database.close()
    return int(count)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_job_that_is_too_large_for_a_ledger(desk: Desk, command: str) -> None:
    """The plan refuses it, as the run does."""
    desk.job(template={"arguments": ["x" * 300_000]})
    said = refused(desk, command, "job.yaml")
    assert said.code == ExitCode.INVALID
    assert "spec: cannot be recorded: a specbody has 3" in said.err
    assert reserved(desk) == 0


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "what"), [(fifo, "a FIFO"), (listening, "a socket"), (device, "a device"), (Path.mkdir, "a folder")]
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_file_that_is_none(desk: Desk, command: str, make: Callable[[Path], None], what: str) -> None:
    """A FIFO, socket, device or folder as script, module or job file is refused at once."""
    desk.job()
    script = desk.folder / "job.py"
    script.unlink()
    make(script)
    said = refused(desk, command, "job.yaml")
    assert said.code == ExitCode.INVALID
    assert f"spec.template.spec.mainApplicationFile: {script} is {what}; name a regular file" in said.err
    said = refused(desk, command, "job.yaml", "--application", "job.py")
    assert f"is {what}; name a regular file" in said.err
    make(desk.folder / "other.yaml")
    said = refused(desk, command, "other.yaml")
    assert said.code == ExitCode.INVALID
    assert f"other.yaml is {what}; name " in said.err
    assert reserved(desk) == 0


@pytest.mark.parametrize(("make", "what"), [(fifo, "a FIFO"), (listening, "a socket"), (device, "a device")])
@pytest.mark.parametrize("command", ["rerun", "cancel", "convert", "render"])
def test_a_job_file_that_is_none(desk: Desk, command: str, make: Callable[[Path], None], what: str) -> None:
    """Every command that reads a job file refuses it."""
    make(desk.folder / "job.yaml")
    said = desk.here(command, "job.yaml", *(["--key", "k"] if command == "convert" else []))
    assert (said.code, f"job.yaml is {what}; name a YAML file" in said.err) == (ExitCode.INVALID, True)


def test_a_module_that_is_a_fifo(desk: Desk) -> None:
    """Files of deps.pyFiles are read for the fingerprint, so a FIFO is refused there, too."""
    desk.job(template={"deps": {"pyFiles": ["module.py"]}})
    os.mkfifo(desk.folder / "module.py")
    said = refused(desk, "run", "job.yaml")
    assert f"spec.template.spec.deps.pyFiles[0]: {desk.folder / 'module.py'} is a FIFO" in said.err


def test_a_job_file_without_end(desk: Desk) -> None:
    """Standard input is read up to a size limit."""
    command = f"yes '#' | exec {sys.executable} -m sparkonce plan -"
    done = completed(["sh", "-c", command], PATIENCE)
    assert done.returncode == ExitCode.INVALID
    sentence = "standard input is larger than 8 MiB, the limit for a job file; name a YAML file"
    assert done.stderr.splitlines()[-1] == f"sparkonce: {sentence}"


def test_files_that_are_not_there(desk: Desk) -> None:
    """A missing job file, script, or file of --application is named."""
    assert "nothing.yaml" in refused(desk, "run", "nothing.yaml").err
    assert "is a folder" in refused(desk, "run", ".").err
    desk.job()
    (desk.folder / "job.py").unlink()
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.INVALID
    assert "spec.template.spec.mainApplicationFile" in said.err
    assert str(desk.folder / "job.py") in said.err
    desk.job(template={"mainApplicationFile": "local:///opt/job.py"})
    assert "--application FILE" in refused(desk, "run", "job.yaml").err
    assert "other.py" in refused(desk, "run", "job.yaml", "--application", "other.py").err


def test_a_text_that_is_no_text(desk: Desk) -> None:
    """A job file in another encoding than UTF-8 is reported as such."""
    for data, told in (
        (b"a: \xe9", "job.yaml is not text in UTF-8 (byte 3)"),
        (b"\xff\xfe\x00", "job.yaml is not text in UTF-16 (byte 2)"),
        (b"\xff\xfe\x00\x00a\x00\x00\x00", "job.yaml is UTF-32, which kubectl does not read; save it as UTF-8"),
    ):
        (desk.folder / "job.yaml").write_bytes(data)
        assert told in refused(desk, "run", "job.yaml").err


def test_an_output_that_cannot_be_written(desk: Desk) -> None:
    """Exit 3 before anything is reserved: a folder that cannot be created counts as a store that cannot be reached."""
    (desk.folder / "lake").write_text("a file where a folder should be")
    desk.job()
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.UNAVAILABLE
    assert str(desk.folder / "lake") in said.err
    assert "no keys in" in desk.here("keys", "list").out


def damaged(path: Path) -> None:
    path.write_bytes(b"this is not a database, and has never been one\n" * 50)


def another_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE accounts (id INTEGER)")
    database.close()


def newer_layout(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET layout = 99")
    database.close()


def folder_instead(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (damaged, "damaged"),
        (another_database, "not a ledger"),
        (newer_layout, "upgrade sparkonce"),
        (folder_instead, "is a folder"),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_ledger_that_cannot_be_used(desk: Desk, command: str, spoil: Callable[[Path], None], told: str) -> None:
    """Exit 3, and the ledger is left as it is."""
    desk.job()
    if spoil is newer_layout:
        assert desk.here("keys", "list").code == 0
    spoil(desk.ledger)
    before = desk.ledger.read_bytes() if desk.ledger.is_file() else b""
    said = refused(desk, command, "job.yaml")
    assert said.code == ExitCode.UNAVAILABLE
    assert str(desk.ledger) in said.err
    assert told in said.err
    assert (desk.ledger.read_bytes() if desk.ledger.is_file() else b"") == before


def test_a_ledger_whose_path_is_no_text(desk: Desk) -> None:
    """Records are JSON and name the folders of attempts: nothing is reserved in a ledger whose path is not UTF-8. Under another name the
    job runs."""
    desk.job()
    name = os.fsdecode(b"ledger-\xff.db")
    said = refused(desk, "run", "job.yaml", "--store", name)
    assert said.code == ExitCode.INVALID
    assert said.err.endswith(".attempts' is not UTF-8, so no record can name it; rename the folder or the ledger")
    (desk.folder / name).rename(desk.ledger)
    assert "no keys in" in desk.here("keys", "list").out
    assert desk.here("run", "job.yaml").code == 0


def test_a_record_of_a_newer_version(desk: Desk) -> None:
    """A record that requires a newer reader is neither run nor overwritten, and `keys list` shows that it cannot be read."""
    desk.job()
    with desk.owned_elsewhere():
        pass
    with sqlite3.connect(desk.ledger) as database:
        [[body]] = database.execute("SELECT body FROM records").fetchall()
        newer = body.replace('"minReader":1', '"minReader":9')
        assert newer != body
        database.execute("UPDATE records SET body = ?", [newer])
    database.close()
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.UNAVAILABLE
    assert "upgrade sparkonce" in said.err
    listed = desk.here("keys", "list", "--json").told
    assert listed["keys"] == []
    assert "upgrade sparkonce" in listed["unreadable"][0]["reason"]
    assert "cannot be read" in desk.here("keys", "list").out
    shown = desk.here("keys", "show", listed["unreadable"][0]["keyHash"][:12])
    assert (shown.code, "upgrade sparkonce" in shown.err) == (ExitCode.UNAVAILABLE, True)


def test_no_java_is_found_before_an_attempt_is_used_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If Java is missing, fails or is too old, a new job is refused with exit 2, and nothing is recorded."""
    monkeypatch.delenv("SPARKONCE_SPARK_SUBMIT")
    desk.job()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.INVALID
    assert "cannot be started" in said.err
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for script, told in (
        ("#!/bin/sh\nexit 1\n", "fails (exit code 1)"),
        ("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n", "Java 11 at"),
    ):
        binary.write_text(script)
        binary.chmod(0o755)
        said = refused(desk, "run", "job.yaml")
        assert told in said.err
        assert "install Java 17 or later" in said.err
    assert "no keys in" in desk.here("keys", "list").out


def test_an_output_that_is_not_declared(desk: Desk) -> None:
    """A job that writes an undeclared output fails, with a sentence about spec.outputs in its log, and nothing is written."""
    desk.job(WRITES.replace('"numbers"', '"orders"'))
    said = desk.here("run", "job.yaml")
    assert said.code == ExitCode.FAILED
    assert "output 'orders' is not declared under spec.outputs" in said.out
    assert desk.commits() == []


def test_a_reader_that_has_gone(desk: Desk) -> None:
    """`sparkonce keys list | true` ends without an error message."""
    desk.job()
    with desk.owned_elsewhere():
        pass
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sparkonce", "keys", "list"]
    done = completed(command, PATIENCE, stdout=write)
    os.close(write)
    assert done.stderr == ""


def test_unused_fields_are_named_once(desk: Desk) -> None:
    """Fields that only Kubernetes uses are named once on standard error, and have no effect."""
    desk.job(template={"image": "registry.example/job:1"}, outputs=[OUTPUT])
    said = desk.here("plan", "job.yaml")
    assert said.err.count("only for Kubernetes, not used here: spec.template.spec.image") == 1


def test_a_full_disk_under_the_ledger(desk: Desk) -> None:
    """A failed write is reported with exit 3 and nothing is lost: once there is room the same command succeeds."""
    desk.job()
    assert desk.here("keys", "list").code == 0
    command = f"ulimit -f 8; exec {sys.executable} -m sparkonce run job.yaml"  # no file may grow beyond 8 blocks
    full = completed(["sh", "-c", command], PATIENCE)
    assert full.returncode == ExitCode.UNAVAILABLE, full
    assert full.stderr.splitlines()[-1].startswith(f"sparkonce: the ledger {desk.ledger} could not be")
    assert "Traceback" not in full.stderr
    assert desk.attempts() == 0
    assert desk.here("run", "job.yaml").code == 0
    assert [slot.rows for slot in desk.commits()] == [1234]


@pytest.mark.parametrize("namespace", ["", ","])
def test_an_empty_namespace_is_not_all_of_them(
    namespace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unset variable in `--namespace=$NS` starts no operator, which would watch the whole cluster."""
    monkeypatch.setattr("sparkonce.kube.operator.serve", lambda *_, **__: pytest.fail("it was started"))
    arguments = ["operator", "--store", "etcd://127.0.0.1:1", "--install", "prod", f"--namespace={namespace}"]
    assert main(arguments) == ExitCode.INVALID
    assert "say which namespaces to watch: --namespace NS (repeatable), or --all-namespaces" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("cancel", "k", "--param", "a=1"),
        ("rerun", "k", "--application", "job.py"),
        ("keys", "explain", "k", "--output", "o=lake"),
        ("keys", "explain", "k", "--application", "job.py"),
    ],
)
def test_what_completes_a_file_is_refused_beside_a_key(desk: Desk, arguments: tuple[str, ...]) -> None:
    """An option that could have no effect is named, before the ledger is asked."""
    said = refused(desk, *arguments)
    assert said.code == ExitCode.INVALID
    assert said.err.startswith(
        f"sparkonce: {arguments[-2]} completes a job file; a key stands for the job as it was sent"
    )
