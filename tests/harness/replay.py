"""Reads past changes of custom resources from the API server's etcd, when the API server itself no longer has their events.

A restarted API server knows no revision before its start, so a watch through it has missed the changes around the crash. etcd has kept
them all, custom resources are JSON there, and a resourceVersion is etcd's revision, so nothing needs to be guessed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx

from harness.etcd import Etcd
from sparkonce.launch.kubernetes import Resource

Json = dict[str, Any]

PATIENCE = 20.0
"""Seconds for etcd to send the next event; it has them all already."""


def replay(etcd: Etcd, resource: Resource, namespace: str, *, after: str, until: str) -> list[Json]:
    """The objects of this kind as they were written after one revision and up to the other, in that order, with their resourceVersion.
    Deletions are left out."""
    last = _last(etcd, resource, namespace, until)
    return list(_events(etcd, resource, namespace, int(after) + 1, last)) if last > int(after) else []


def _last(etcd: Etcd, resource: Resource, namespace: str, until: str) -> int:
    """The latest revision of what exists at `until`."""
    found = etcd.members[0].post("kv/range", {**_range(resource, namespace), "revision": until, "keys_only": True})
    return max((int(kv["mod_revision"]) for kv in found.get("kvs", ())), default=0)


def _events(etcd: Etcd, resource: Resource, namespace: str, first: int, last: int) -> Iterator[Json]:
    request = {"create_request": {**_range(resource, namespace), "start_revision": str(first)}}
    url = f"http://{etcd.members[0].address}/v3/watch"
    with (
        httpx.Client(trust_env=False, timeout=PATIENCE) as http,
        http.stream("POST", url, content=json.dumps(request)) as answer,
    ):
        for line in answer.iter_lines():
            for event in json.loads(line)["result"].get("events", ()):
                kv = event["kv"]
                if "value" in kv:
                    found = json.loads(base64.b64decode(kv["value"]))
                    found["metadata"]["resourceVersion"] = kv["mod_revision"]
                    yield found
                if int(kv["mod_revision"]) >= last:
                    return


def _range(resource: Resource, namespace: str) -> dict[str, str]:
    prefix = f"/registry/{resource.group}/{resource.plural}/{namespace}/"
    return {"key": _b64(prefix), "range_end": _b64(prefix[:-1] + "0")}  # "0" follows "/"


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
