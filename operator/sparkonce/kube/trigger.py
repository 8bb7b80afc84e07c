"""The only module that imports kopf: watches IdempotentJobs and enqueues changed ones, never writes.

kopf has no lock between operators, and every feature of it that stores state writes once per replica, the last one wins. Only
`@kopf.on.event` as a stateless trigger stays correct with several replicas, so nothing else is used: an async handler returns None and
hands the event to our own loop. kopf writes nothing: posting is off, both storages are null, and kopf's finalizer has an unused name,
because kopf strips the configured one from every object. A test counts that three triggers together make no write.

kopf runs in a thread and a loop of its own, since it cancels every task that is younger than itself when it ends and takes SIGTERM in
the main thread. It ends on a lost watch, on purpose; then it is started again, which lists everything anew. It gets no `stop_flag`, on
which it would wait in a thread that never returns, but is cancelled.

What kopf does not report is read from its requests. It opens a watch only after the whole list before it was handed to the handlers, so the
first opened watch of every namespace is `seen_first_list`. The API server is asked to end each watch after `STREAM` seconds, so no newly
opened watch for longer than `SILENCE` means that kopf's watch is dead; kopf is restarted.

Events are hints: DELETED also means "does not match any more" or "the CRD is being deleted", and deletions while kopf was down are not
reported at all. The callback gets the body, which may save a read; the sweep finds what no event reported.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aiohttp
import kopf

from sparkonce.kube.client import path_of
from sparkonce.kube.login import KubeLogin
from sparkonce.kube.transport import FAREWELL, session_for
from sparkonce.kube.watch import pauses
from sparkonce.launch.kubernetes import JOBS, Json, Resource

log = logging.getLogger(__name__)

HandOver = Callable[[str | None, Json], None]
"""Type (None: of a list; ADDED, MODIFIED, DELETED) and the whole object, not to be changed. Called on the loop of `start`."""
STREAM = 120
"""Seconds after which the API server ends a watch: short enough to detect a dead one soon, at no cost."""
SILENCE = 180.0
"""Seconds without a newly opened watch after which kopf is restarted."""
LOGINS = 2.0
"""Minimum seconds between logins of one kopf: it logs in again at each 401, without a pause of its own."""
AT_ONCE = 100
"""Events delivered in one turn of the event loop: a list of thousands must not delay the renewal of a lease."""
ENDING = 15.0
"""Seconds that kopf gets to end its watches; after that it ends with its thread."""
FINALIZER = "sparkonce.dev/nobody-uses-this"


class Trigger:
    """Runs kopf in a thread. namespaces: None for all. Call `start` once, on the event loop that is to get the events."""

    def __init__(
        self,
        login: KubeLogin,
        hand_over: HandOver,
        *,
        namespaces: Sequence[str] | None = None,
        resource: Resource = JOBS,
        first: float = 0.2,
        cap: float = 15.0,
        silence: float = SILENCE,
    ) -> None:
        """first, cap: first and longest pause in seconds before kopf is restarted."""
        self._login, self._hand_over, self._resource = login, hand_over, resource
        self._namespaces = None if namespaces is None else sorted(set(namespaces))
        self._first, self._cap, self._silence = first, cap, silence
        scopes: Sequence[str | None] = [None] if self._namespaces is None else self._namespaces
        self._wanted = {path_of(resource, each) for each in scopes}
        self._opened: dict[str, float] = {}  # path of a watch: when it was opened last
        self._ever: set[str] = set()  # paths that were watched at least once
        self._listed = False
        self._last_login = -LOGINS
        self._handed: deque[tuple[str | None, Json]] = deque()
        self._woken = False
        self._signs = time.monotonic()
        self._requests: Counter[str] = Counter()
        self._starts = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._stopped = threading.Event()

    @property
    def seen_first_list(self) -> bool:
        """Whether every namespace was listed completely and passed to the handlers at least once."""
        return self._listed

    @property
    def quiet(self) -> float:
        """Seconds since the last event or newly opened watch; up to `STREAM` is usual."""
        return time.monotonic() - self._signs

    @property
    def restarts(self) -> int:
        """Number of restarts of kopf."""
        return max(0, self._starts - 1)

    @property
    def requests(self) -> Counter[str]:
        """Number of kopf's requests by HTTP method: only GET."""
        return Counter(self._requests)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self._thread.start()

    async def stop(self, timeout: float = 10.0) -> None:
        """Stops kopf; no event is delivered afterwards. A thread that does not end in time is a daemon and is abandoned."""
        self._stopped.set()
        if self._own is not None and self._supervisor is not None:
            try:
                self._own.call_soon_threadsafe(self._supervisor.cancel)
            except RuntimeError:  # its loop has ended already
                log.debug("the trigger had ended")
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, timeout)

    # --- in kopf's thread ---

    def _run(self) -> None:
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # otherwise two lines per event
        try:
            asyncio.run(self._supervised())
        except asyncio.CancelledError:
            log.debug("the trigger was stopped")
        except Exception:
            log.exception("the trigger ended")

    async def _supervised(self) -> None:
        try:
            await self._supervise()
        finally:
            await asyncio.sleep(FAREWELL)

    async def _supervise(self) -> None:
        self._own, self._supervisor = asyncio.get_running_loop(), asyncio.current_task()
        waits = pauses(self._first, self._cap)
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                if await self._served():
                    await self._watched_over()
                else:
                    log.warning("%s is not served; is its CustomResourceDefinition installed?", self._resource.plural)
            except asyncio.CancelledError:
                if self._stopped.is_set():
                    raise
                log.warning("kopf was cancelled; it is started again")
            except Exception as error:  # noqa: BLE001  # kopf passes on any error of its watch; the trigger continues
                log.warning("kopf ended: %r; it is started again", error)
            if time.monotonic() - began > self._cap:
                waits = pauses(self._first, self._cap)
            await asyncio.sleep(next(waits))

    async def _served(self) -> bool:
        """Whether the kind is served: kopf checks only when it starts, and waits for ever if it is not."""
        access = await self._login.access()
        async with session_for(access) as session:
            group = f"/apis/{self._resource.api_version}"
            async with session.get(access.server + group, timeout=aiohttp.ClientTimeout(total=10)) as response:
                if response.status == 401:
                    self._login.refused()
                if response.status != 200:
                    return False
                found = await response.json()
        return any(each.get("name") == self._resource.plural for each in found.get("resources", ()))

    async def _watched_over(self) -> None:
        """Runs kopf until it ends, or opens no watch for too long."""
        self._starts += 1
        self._last_login = -LOGINS
        began = time.monotonic()
        self._opened = dict.fromkeys(self._wanted, began)
        running = asyncio.create_task(self._kopf(), name="kopf")
        try:
            while not running.done():
                left = min(self._opened.values()) + self._silence - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no watch was opened for {self._silence:g} s")
                await asyncio.wait({running}, timeout=left)
        finally:
            running.cancel()
            await asyncio.wait({running}, timeout=ENDING)
        running.result()

    async def _kopf(self) -> None:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, id="login")(self._logged_in)
        kopf.on.event(
            self._resource.group, self._resource.version, self._resource.plural, registry=registry, id="trigger"
        )(self._event)
        await kopf.operator(
            registry=registry,
            settings=quiet_settings(),
            standalone=True,  # otherwise an object named `default` of kopf's peering would pause all replicas
            clusterwide=self._namespaces is None,
            namespaces=self._namespaces or (),
        )

    async def _event(self, event: Any, **_: Any) -> None:
        """The handler. It returns None and leaves `patch` alone: either would make kopf write."""
        self._signs = time.monotonic()
        if self._loop is None or self._stopped.is_set():
            return
        self._handed.append((event["type"], event["object"]))
        if self._woken:
            return  # a delivery is scheduled already and will include this event
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the other event loop has ended, and this one will
            log.debug("an event came after the end")

    def _deliver(self) -> None:
        """Delivers queued events on the operator's loop: a wake-up per event would keep switching between the two threads."""
        self._woken = False
        for _ in range(AT_ONCE):
            if not self._handed or self._stopped.is_set():
                return
            kind, body = self._handed.popleft()
            try:
                self._hand_over(kind, body)
            except Exception:
                log.exception("what follows an event of %s", self._resource.plural)
        asyncio.get_running_loop().call_soon(self._deliver)

    async def _logged_in(self, **_: Any) -> kopf.AiohttpSession:
        """Logs kopf in. kopf asks again after each 401, at once and for ever, so further logins wait."""
        left = self._last_login + LOGINS - time.monotonic()
        if left > 0:
            self._login.refused()
            await asyncio.sleep(left)
        self._last_login = time.monotonic()
        access = await self._login.access()
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._requested)
        trace.on_request_end.append(self._answered)
        return kopf.AiohttpSession(server=access.server, aiohttp_session=session_for(access, traces=[trace]))

    async def _requested(self, _: Any, __: Any, request: aiohttp.TraceRequestStartParams) -> None:
        self._requests[request.method.upper()] += 1

    async def _answered(self, _: Any, __: Any, request: aiohttp.TraceRequestEndParams) -> None:
        if request.response.status != 200 or request.url.query.get("watch") != "true":
            return
        path = request.url.path
        if path in self._wanted:
            self._signs = self._opened[path] = time.monotonic()
            self._ever.add(path)
            self._listed = self._ever >= self._wanted


class _NoDiffBase(kopf.DiffBaseStorage):
    """Stores nothing and compares nothing, so kopf copies nothing for comparison."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Does nothing: no state of kopf is kept in objects."""


class _NoProgress(kopf.ProgressStorage):
    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Does nothing: no state of kopf is kept in objects."""

    def purge(self, **_: Any) -> None:
        """Does nothing: no state of kopf is kept in objects."""

    def touch(self, **_: Any) -> None:
        """Does nothing: no state of kopf is kept in objects."""

    def clear(self, *, essence: Any) -> Any:
        return essence


class _Backoffs:
    """Endless backoff pauses, so that one namespace without permission does not end the watches of all others. kopf iterates it anew each
    time."""

    def __iter__(self) -> Iterator[float]:
        return pauses(1.0, 20.0)


def quiet_settings() -> kopf.OperatorSettings:
    """Every setting that differs from kopf's defaults, with its reason."""
    settings = kopf.OperatorSettings()
    settings.process.ultimate_exiting_timeout = None  # it would kill the process, not the thread
    settings.posting.enabled = False  # events are ours
    settings.scanning.disabled = True  # no watch of CRDs and namespaces: less permission is needed
    settings.persistence.finalizer = FINALIZER  # kopf strips the finalizer of this name from every object
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()
    settings.queueing.idle_timeout = 0.5  # two tasks per object live so long after its last event
    settings.watching.chunk_size = 500  # one page of bodies in memory
    settings.watching.server_timeout = STREAM
    settings.watching.client_timeout = STREAM + 10  # where the API server forgets to end it
    settings.networking.request_timeout = 10
    settings.networking.error_backoffs = _Backoffs()
    return settings
