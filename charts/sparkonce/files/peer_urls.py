"""Prepares the members of an etcd for a change between http and https on their peer port, one after the other.

Usage: peer_urls.py http|https FOLDER HOST:PORT...

A member finds the others by their recorded peer URLs, and tries the next URL of a peer that does not answer. So before the first member
is replaced each peer gets both schemes, and an upgrade after all of them speak the wanted one removes the other. Repeating it, twice at
once or after a failure, does no harm: it only makes the recorded URLs what they should be. FOLDER has ca.crt, tls.crt and tls.key, if
there are any. Without a member whose name resolves there is no etcd yet, and nothing to do. Standard library only: it runs from a chart.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import time
import urllib.request
from pathlib import Path

PATIENCE = 60.0
"""Seconds for one of the members to answer."""
TIMEOUT = 5.0
"""Seconds for each request; a member answers from its own disk or its leader."""


def openers(folder):
    """By scheme, what opens URLs, without any proxy; https only with the three files."""
    direct = urllib.request.ProxyHandler({})
    found = {"http": urllib.request.build_opener(direct)}
    if (folder / "tls.key").exists():
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        found["https"] = urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=context))
    return found


def ask(opener, url, verb, body):
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v3/cluster/member/{verb}", json.dumps(body).encode(), headers)
    with opener.open(request, timeout=TIMEOUT) as answer:
        return json.load(answer)


def serving(endpoints, opens):
    """By endpoint, its URL and its view of the members, which it read through the quorum."""
    found = {}
    for endpoint in endpoints:
        for scheme, opener in opens.items():
            url = f"{scheme}://{endpoint}"
            try:
                found[endpoint] = url, ask(opener, url, "list", {"linearizable": True})["members"]
                break
            except (OSError, ValueError, KeyError):
                continue
    return found


def exists(endpoint):
    try:
        return bool(socket.getaddrinfo(endpoint.rpartition(":")[0], None))
    except OSError:
        return False


def prepare(wanted, folder, endpoints):
    """Updates the members whose URLs differ from what they should be, and prints them."""
    opens, end = openers(folder), time.monotonic() + PATIENCE
    while not (found := serving(endpoints, opens)):
        if not any(map(exists, endpoints)):
            print("no member of the ledger exists: nothing to prepare")
            return
        if time.monotonic() > end:
            sys.exit("no member of the ledger answers, and replacing them could end its quorum; bring it back first")
        time.sleep(2)
    done = len(found) == len(endpoints) and all(url.startswith(f"{wanted}:") for url, _ in found.values())
    schemes = [wanted] if done else ["http", "https"]
    url, members = next(iter(found.values()))
    for member in members:
        places = sorted({each.partition("://")[2] for each in member["peerURLs"]})
        urls = [f"{scheme}://{place}" for scheme in schemes for place in places]
        if sorted(urls) != sorted(member["peerURLs"]):
            ask(opens[url.partition(":")[0]], url, "update", {"ID": member["ID"], "peerURLs": urls})
            print(member.get("name"), *urls)


if __name__ == "__main__":
    prepare(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
