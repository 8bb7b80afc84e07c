"""Says which volumes a driver pod waits for: a ConfigMap, Secret or claim that is missing, or a disk that cannot be attached.

A kubelet says this in Events alone; the pod's status only shows that the pod is not ready for containers. To read Events by a field
selector, the API server scans those of the namespace, and a watch would deliver those of all its pods. So they are read once a pod has been
in this state for longer than mounting usually takes: one read at a time in a process, and of each pod ever more rarely. A job that starts
normally costs no request.

A hint: Events that cannot be read (no permission, no answer) leave the reason empty, and nothing is decided by it.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sparkonce.errors import SparkonceError
from sparkonce.launch.kubeflow.labels import as_map, text_of
from sparkonce.launch.kubeflow.pod import MESSAGE
from sparkonce.launch.kubernetes import Json, time_of
from sparkonce.launch.protocol import ApplicationState

USUAL = 5.0
"""Seconds that mounting may take before the pod's Events are read: ConfigMaps and Secrets take one or two."""
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 60.0
"""Seconds between two reads of one pod's Events; each pause is twice the last one."""
REMEMBERED = 4096
"""Pods whose cause is cached: more than start at a time. One that is forgotten is read again."""
NAMED = 3
"""Volumes that a cause names."""
RECENT = timedelta(seconds=180)
"""Age, compared with the newest Event of the pod, up to which a volume still counts as failing: a kubelet repeats a mount within 122 s."""

_VERBS: Mapping[str, str] = {"FailedMount": "mounted", "FailedMapVolume": "mounted", "FailedAttachVolume": "attached"}
_VOLUME = re.compile(r'for volume "([^"]{1,253})"')
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

ReadEvents = Callable[[str, str], Awaitable[Sequence[Json]]]
"""Namespace and UID of a pod to the warnings about it."""


def why_unmounted(events: Iterable[Mapping[str, Any]]) -> str:
    """One cause with its reason and details (see `ApplicationState.waits`); empty if no Event is about a volume.

    It names all volumes that fail now in the order of their names, and quotes the first, so that it changes only when they do."""
    failing = [(_last(each), each) for each in map(as_map, events) if text_of(each.get("reason")) in _VERBS]
    if not failing:
        return ""
    newest = max(at for at, _ in failing)
    by_volume: dict[str, tuple[datetime, Mapping[str, Any]]] = {}
    for at, each in failing:
        volume = _volume(each)
        if newest - at <= RECENT and (volume not in by_volume or by_volume[volume][0] < at):
            by_volume[volume] = at, each
    named = sorted(filter(None, by_volume))
    _, event = by_volume[named[0] if named else ""]
    reason, message = text_of(event.get("reason")), text_of(event.get("message"))
    quoted = ", ".join(f'"{each}"' for each in named[:NAMED]) + (" and others" if len(named) > NAMED else "")
    what = f"volumes {quoted} of" if len(named) > 1 else f"volume {quoted} of" if named else "a volume of"
    detail = f": {message[:MESSAGE]}" if message else ""
    return f"{what} its driver pod cannot be {_VERBS[reason]} ({reason}){detail}"


def _volume(event: Mapping[str, Any]) -> str:
    """Empty for the summary ("Unable to attach or mount volumes"), which says less than the Event of each volume."""
    found = _VOLUME.search(text_of(event.get("message")))
    return found[1] if found else ""


def _last(event: Mapping[str, Any]) -> datetime:
    """When the Event was last seen, in whichever field its writer keeps it."""
    series = as_map(event.get("series")).get("lastObservedTime")
    times = (series, event.get("lastTimestamp"), event.get("eventTime"), event.get("firstTimestamp"))
    return max((at for at in map(time_of, times) if at is not None), default=_EPOCH)


@dataclass
class _Waiting:
    next_read: float
    pause: float = FIRST_PAUSE
    why: str = ""


class MountTroubles:
    """The causes of driver pods that wait for their volumes, cached by pod."""

    def __init__(
        self, read: ReadEvents | None, *, now: Callable[[], float], clock: Callable[[], float] = time.time
    ) -> None:
        """read: None disables them. now: monotonic seconds. clock: Unix seconds."""
        self._read, self._now, self._clock = read, now, clock
        self._known: OrderedDict[str, _Waiting] = OrderedDict()
        self._reads = False

    async def with_cause(self, seen: ApplicationState, *, namespace: str) -> ApplicationState:
        """The state with the volumes that its driver pod waits for. Raises no errors."""
        if self._read is None or seen.driver is None:
            return seen
        if seen.mounting is None or seen.waits:
            self._known.pop(seen.driver, None)
            return seen
        left = max(0.0, USUAL - max(0.0, self._clock() - seen.mounting))
        waiting = self._known.setdefault(seen.driver, _Waiting(self._now() + left))
        self._known.move_to_end(seen.driver)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        if not self._reads and self._now() >= waiting.next_read:
            await self._look(self._read, namespace, seen.driver, waiting)
        return replace(seen, waits=waiting.why)

    async def _look(self, read: ReadEvents, namespace: str, pod: str, waiting: _Waiting) -> None:
        self._reads = True
        try:
            waiting.why = why_unmounted(await read(namespace, pod))
        except SparkonceError:
            pass  # what was known stays
        finally:
            self._reads = False
            waiting.next_read, waiting.pause = self._now() + waiting.pause, min(2 * waiting.pause, LONGEST_PAUSE)
