"""Prepares a request from a manifest: key, fingerprints, content digests, absolute paths, sinks. Reads files, writes nothing.

In local mode the contents of the script and its --py-files are must-match: a changed script is another job, not a replay.

Files that a user names are read if they are regular, and nothing blocks: opening a FIFO waits for a writer, and reading a device may never
end. So a file is opened without waiting and its type is checked before it is read, on the open descriptor, because the name may mean
another file by then.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sparkonce.attempt.decide import Policy
from sparkonce.errors import InvalidInput, LaunchUnavailable
from sparkonce.launch.submit import LocalTemplate, absolute, check_paths, command_for
from sparkonce.model import identity
from sparkonce.model.identity import Key, derive
from sparkonce.model.record import Address, Assignment, Opener, Record, SpecBody
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob
from sparkonce.sink.open import sinks_of, sinks_or_absent
from sparkonce.sink.protocol import Sink
from sparkonce.store.codec import encode
from sparkonce.store.protocol import Request

if TYPE_CHECKING:
    from sparkonce.attempt.drive import DrivenJob
    from sparkonce.launch.local import Command

REALM = "local"
HEARTBEAT_TIMEOUT = 30
"""Seconds; local default of heartbeatTimeoutSeconds, shorter than on a cluster because no network delays heartbeats."""
_CHUNK = 1 << 20
_TYPES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(InvalidInput):
    """The name is a folder, FIFO, socket or device; `what` says which."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} is {what}; name a regular file")
        self.what = what


class NotHere(InvalidInput):
    """The job's application is not a file of this machine, so its content is unknown. Expected for a job that runs on a cluster.
    The message is both attributes."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        """The field, and where its file is."""
        self.remedy = remedy
        """What to do to run the job here."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One request, which may be sent any number of times."""

    job: IdempotentJob
    key: Key
    contents: Mapping[str, str]
    spec: SpecBody
    sinks: Sequence[Sink]
    application: str | None = None
    """Replaces the template's main file (--application)."""

    @property
    def address(self) -> Address:
        return Address(realm=REALM, key_hash=self.key.key_hash)

    @cached_property
    def policy(self) -> Policy:
        """Decides what a request for a key with a record gets."""
        return Policy.of(self.job.spec, heartbeat_timeout=HEARTBEAT_TIMEOUT)

    @cached_property
    def fingerprints(self) -> Mapping[int, str]:
        """Version of the algorithm -> fingerprint."""
        return identity.fingerprints(self.job, contents=self.contents)

    def same(self, record: Record) -> bool:
        """Whether the record is for the same job (`identity.same`). Raises: UnknownFingerprintVersion."""
        return identity.same(record.fingerprint, record.fingerprint_version, self.fingerprints)

    def differing(self, record: Record, spec: SpecBody) -> list[str]:
        """Paths of the fields, and the files, in which this request differs from the record."""
        return identity.differing(
            spec.digests,
            self.job,
            secret=bytes.fromhex(spec.secret),
            contents=self.contents,
            version=record.fingerprint_version,
        )

    def request(self, nonce: str) -> Request:
        """The request to reserve or reopen; repeat the same value when its answer is lost."""
        return Request(
            address=self.address,
            key=self.key.text,
            by=Opener(nonce=nonce),
            nonce=nonce,
            fingerprints=self.fingerprints,
            spec=self.spec,
            operation=self.key.binding.operation,
            resource=self.key.binding.resource,
            job_revision=self.job.spec.effective_revision,
        )

    async def check(self) -> None:
        """Checks that every output can be written to exactly once, before anything is reserved.

        Raises: OutputUnavailable, OutputUnsafe, OutputUnsupported, InvalidInput: as the sink's `check`; nothing was reserved."""
        for sink in self.sinks:
            await sink.check()

    def replacing(self, sinks: Sequence[Sink]) -> Prepared:
        return replace(self, sinks=sinks)


def prepare(job: IdempotentJob, *, base: str, application: str | None = None) -> Prepared:
    """Prepares a job. `base`: the folder that relative paths start from.

    Raises: InvalidInput: a file cannot be read. OutputUnsupported: an output's kind is not supported here."""
    return assemble(
        job, contents=contents_of(job, base=base, application=application), base=base, application=application
    )


def assemble(job: IdempotentJob, *, contents: Mapping[str, str], base: str, application: str | None = None) -> Prepared:
    """Like `prepare`, from content digests that are known already. Raises: InvalidInput: a ledger could not keep the job."""
    if job.spec.bind is not None:
        raise InvalidInput(
            f"spec.bind names application {job.spec.bind.application} of a cluster, which an operator can follow; apply it with kubectl"
        )
    main = next(iter(contents.values()), "")
    key = derive(job.spec, REALM, content_digests={"ApplicationFile": main})
    secret = secrets.token_bytes(32)
    spec = SpecBody(
        job=job.document(),
        digests=identity.path_digests(job, secret=secret, contents=contents),
        secret=secret.hex(),
        contents=dict(contents),
        base=base,
    )
    try:
        encode(spec)  # what cannot be recorded is refused here, so that `plan` says what `run` would
    except InvalidInput as problem:
        raise InvalidJob([("spec", f"cannot be recorded: {problem}")]) from None
    sinks = tuple(sinks_of(job, base).values())
    return Prepared(job=job, key=key, contents=contents, spec=spec, sinks=sinks, application=application)


def contents_of(job: IdempotentJob, *, base: str, application: str | None = None) -> dict[str, str]:
    """SHA-256 of the script and its --py-files, keyed by how a mismatch names them; the main file first. Raises: InvalidInput, NotHere."""
    template = LocalTemplate.of(job)
    check_paths(template, base)
    files = _counted(template, base=base, application=application)
    main, _ = next(iter(files.values()))
    if "://" in main:
        where = "inside an image" if main.startswith("local:") else "not a file of this machine"
        raise NotHere(
            f"spec.template.spec.mainApplicationFile is {template.main_file}, which is {where}",
            "say where it is on this machine with --application FILE",
        )
    return {name: _digest(path, field) for name, (path, field) in files.items()}


def _counted(template: LocalTemplate, *, base: str, application: str | None) -> dict[str, tuple[str, str]]:
    """The files whose content must match, by how a mismatch names them: path and field. The main file first, wherever it is."""
    main = application or absolute(template.main_file, base)
    files = {f"application file {Path(template.main_file).name}": (main, "spec.template.spec.mainApplicationFile")}
    for number, file in enumerate(template.py_files):
        if file.startswith("file:") or "://" not in file:
            field = f"spec.template.spec.deps.pyFiles[{number}]"
            files.setdefault(f"py file {file}", (absolute(file, base), field))
    return files


def command_as_sent(*, application: str | None = None, ledger: str = "") -> Callable[[Assignment], Command]:
    """As `command_for`, for attempts that run what their job was when it was sent.

    An edit in the seconds until Spark reads the file is not seen. A copy is not run in its place: a script would find neither the modules
    beside it nor what it opens by `__file__`.

    Raises, when the command is built: LaunchUnavailable: a file whose content must match has another one, or cannot be read."""
    build = command_for(application=application, ledger=ledger)

    def checked(assignment: Assignment) -> Command:
        template = LocalTemplate.of(IdempotentJob.of(assignment.spec.job))
        base = assignment.spec.base or str(Path.cwd())
        for name, (path, field) in _counted(template, base=base, application=application).items():
            sent = assignment.spec.contents.get(name)  # none where an earlier release did not read it
            if sent is not None and _now(path, field) != sent:
                raise LaunchUnavailable(
                    f"{path} is not what it was when {assignment.key} was sent, so that attempt {assignment.attempt} was not started; "
                    f"restore it and send the job again, or end this run with `sparkonce cancel {assignment.key}` and run the changed job "
                    "with `sparkonce rerun -f FILE`"
                )
        return build(assignment)

    return checked


def _now(path: str, field: str) -> str | None:
    try:
        return _digest(path, field)
    except InvalidInput:
        return None


def _digest(path: str, field: str) -> str:
    digest = hashlib.sha256()
    try:
        with regular(path) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except NotRegular as refused:
        raise InvalidInput(f"{field}: {path} is {refused.what}; name a regular file") from None
    except OSError as problem:
        raise InvalidInput(
            f"{field}: {path} cannot be read ({problem.strerror}); name one file of this machine; "
            "a relative path is relative to the job file"
        ) from None
    return digest.hexdigest()


def regular(path: str) -> IO[bytes]:
    """The file, open for reading. Raises: NotRegular. OSError: it cannot be opened."""
    _check(path, os.stat(path).st_mode)  # noqa: PTH116 - a socket cannot be opened, so its type is checked by name first
    # O_NOCTTY: a terminal must not become ours; O_NONBLOCK: it may have become a FIFO since.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(number, "rb")
    try:
        _check(path, os.fstat(number).st_mode)
    except NotRegular:
        file.close()
        raise
    return file


def _check(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotRegular(path, next((what for test, what in _TYPES if test(mode)), "no regular file"))


def unread(job: IdempotentJob, *, base: str) -> Key | None:
    """The key of a job whose application cannot be read here, after the checks that need no file; None: it depends on that file's content.

    Raises: InvalidInput, OutputUnsupported, as `prepare`."""
    sinks_of(job, base)
    return None if job.spec.key_from else derive(job.spec, REALM)


def describe(_: Record, spec: SpecBody) -> DrivenJob:
    """A generation's job as a drive needs it, from the recorded spec."""
    from sparkonce.attempt.drive import DrivenJob

    job = IdempotentJob.of(spec.job)
    policy = Policy.of(job.spec, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    return DrivenJob(spec=spec, policy=policy, sinks=recorded_sinks(spec))


def recorded_sinks(spec: SpecBody) -> tuple[Sink, ...]:
    """The outputs of a generation, from the recorded spec."""
    return tuple(sinks_or_absent(IdempotentJob.of(spec.job), spec.base).values())
