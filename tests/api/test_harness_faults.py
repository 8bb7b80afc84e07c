"""The proxy in front of the API server: each fault has its own effect and no other."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from harness.api_faults import ApiProxy
from harness.apiserver import ADMIN, Cluster
from harness.eventually import assert_eventually
from harness.kube_api import CONFIG_MAPS, Api, ApiError, path_of

MAPS = "/configmaps"


@pytest.fixture
def through(cluster: Cluster, api_proxy: ApiProxy) -> Iterator[Api]:
    with Api(api_proxy.url, ca=cluster.certificates.ca, token=ADMIN, user_agent="who-is-tested") as api:
        yield api


class Watch:
    """Events of a watch of config maps, received in a thread."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.over = threading.Event()
        self._api, self._path = api, path_of(CONFIG_MAPS, namespace)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        parameters = {"watch": "1", "resourceVersion": "0"}
        with suppress(httpx.HTTPError), self._api._http.stream("GET", self._path, params=parameters) as answer:
            for line in answer.iter_lines():
                self.events.append(json.loads(line))
        self.over.set()

    def names(self) -> list[str]:
        return [
            each["object"]["metadata"]["name"] for each in self.events if "name" in each["object"].get("metadata", {})
        ]


def test_what_is_not_touched_goes_through(api_proxy: ApiProxy, through: Api, namespace: str) -> None:
    """Answers, refusals and watches are the API server's; the log has callers, requests and answers."""
    through.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace)
    with pytest.raises(ApiError, match="409 AlreadyExists"):
        through.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace)
    watch = Watch(through, namespace)
    assert_eventually(lambda: watch.names() == ["a"], 10)
    asked = api_proxy.asked(path=MAPS)
    assert [(each.method, each.status, each.watch) for each in asked] == [
        ("POST", 201, False),
        ("POST", 409, False),
        ("GET", 200, True),
    ]
    assert len(api_proxy.writes(agent="who-is-tested")) == 2
    assert api_proxy.writes(agent="somebody-else") == []


def test_an_injected_answer_is_not_delivered(api_proxy: ApiProxy, through: Api, namespace: str) -> None:
    """429 is answered as often as asked, with its Retry-After, and nothing reaches the API server; then the fault is over."""
    fault = api_proxy.answer(429, method="POST", path=MAPS, times=2, retry_after=7)
    for _ in range(2):
        with pytest.raises(ApiError, match="429 TooManyRequests"):
            through.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace)
    assert through.get(CONFIG_MAPS, "a", namespace) is None
    through.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace)
    assert (fault.hits, len(api_proxy.writes(path=MAPS))) == (2, 1)

    api_proxy.answer(500, method="GET", seconds=0.2)
    with pytest.raises(ApiError, match="500"):
        through.get(CONFIG_MAPS, "a", namespace)
    assert_eventually(through.healthy, 5)


def test_a_lost_reply_is_of_a_write_that_happened(api_proxy: ApiProxy, through: Api, namespace: str) -> None:
    """With a lost reply the client sees a broken connection and the object exists; with a lost request it does not."""
    for lose, exists in ((api_proxy.lose_reply, True), (api_proxy.lose_request, False)):
        lose(method="POST", path=MAPS)
        with pytest.raises(httpx.TransportError):
            through.create(CONFIG_MAPS, {"metadata": {"name": f"it-{exists}".lower()}}, namespace)
        assert (through.get(CONFIG_MAPS, f"it-{exists}".lower(), namespace) is not None) is exists
        [asked] = [each for each in api_proxy.asked(method="POST", path=MAPS) if each.status is None]
        assert asked.delivered is exists
        api_proxy.requests.clear()


def test_a_delayed_write_lands_although_its_sender_has_gone(
    cluster: Cluster, api_proxy: ApiProxy, through: Api, namespace: str
) -> None:
    """A create whose sender gave up is delivered afterwards; a delayed reply makes its sender wait."""
    api_proxy.delay(0.5, method="POST", path=MAPS, times=1)
    path, body = path_of(CONFIG_MAPS, namespace), json.dumps({"metadata": {"name": "late"}})
    with pytest.raises(httpx.TimeoutException):
        through._http.post(path, content=body, headers={"Content-Type": "application/json"}, timeout=0.1)
    assert cluster.api.get(CONFIG_MAPS, "late", namespace) is None
    assert_eventually(lambda: cluster.api.get(CONFIG_MAPS, "late", namespace) is not None, 10)

    api_proxy.delay_reply(0.3, method="GET", path=MAPS, times=1)
    began = time.monotonic()
    through.get(CONFIG_MAPS, "late", namespace)
    assert time.monotonic() - began >= 0.3


def test_watches_are_closed_expired_and_silenced(
    cluster: Cluster, api_proxy: ApiProxy, through: Api, namespace: str
) -> None:
    """A watch ends when it is closed, gets 410 when it is expired, and gets no events while it is silenced."""
    closed = Watch(through, namespace)
    assert_eventually(lambda: api_proxy.watching(path=MAPS) == 1, 10)
    assert api_proxy.close_watches(path=MAPS) == 1
    assert_eventually(closed.over.is_set, 10)

    expired = Watch(through, namespace)
    assert_eventually(lambda: api_proxy.watching(path=MAPS) == 1, 10)
    assert api_proxy.expire_watches(path=MAPS) == 1
    assert_eventually(expired.over.is_set, 10)
    assert (expired.events[-1]["type"], expired.events[-1]["object"]["code"]) == ("ERROR", 410)

    hushed = Watch(through, namespace)
    assert_eventually(lambda: api_proxy.watching(path=MAPS) == 1, 10)
    api_proxy.hush(path=MAPS)
    cluster.api.create(CONFIG_MAPS, {"metadata": {"name": "unheard"}}, namespace)
    witness = Watch(cluster.api, namespace)
    assert_eventually(lambda: "unheard" in witness.names(), 10)
    api_proxy.clear()
    cluster.api.create(CONFIG_MAPS, {"metadata": {"name": "heard"}}, namespace)
    assert_eventually(lambda: hushed.names() == ["heard"], 10)
