"""Parses the address of an etcd store:

    etcd://HOST:PORT[,HOST:PORT...][?OPTION=VALUE&...]

TLS files and the user's name are part of the address. The password is not, because addresses are printed, logged and visible in process
lists: it comes from SPARKONCE_ETCD_PASSWORD. An address with a password is refused without being quoted. Unknown options are refused,
because a misspelt `ca` would otherwise mean no TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sparkonce.errors import InvalidInput
from sparkonce.etcd.client import Tls

PASSWORD = "SPARKONCE_ETCD_PASSWORD"
LEAST_TTL = 2
"""Seconds: etcd grants no shorter lease."""
LARGEST_TTL = 3600
"""Seconds: a dead owner's keys wait for as long."""

_UNREAD = "the address of the etcd store cannot be read; write etcd://HOST:PORT[,HOST:PORT]"
_KNOWN = "ca, cert, key, server-name, tls, user, ttl, timeout, quota"


def parsed(url: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the keyword arguments of `EtcdStore`.

    Raises:
        InvalidInput: the address cannot be parsed, or its options contradict each other.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidInput(_UNREAD) from None
    if "@" in parts.netloc:
        raise InvalidInput(
            f"the address of the etcd store names a user before the host; write ?user=NAME and set {PASSWORD}"
        )
    endpoints = [place for place in parts.netloc.split(",") if place]
    if not endpoints or parts.path not in ("", "/") or parts.fragment:
        raise InvalidInput(_UNREAD)
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    options: dict[str, Any] = {"endpoints": endpoints, "tls": _tls(said)}
    if (user := said.pop("user", "")) or PASSWORD in environment:
        if not user or not environment.get(PASSWORD):
            raise InvalidInput(
                f"etcd needs both a user and a password: write ?user=NAME in its address and set {PASSWORD}"
            )
        options |= {"user": user, "password": environment[PASSWORD]}
    for name, kind, least, most in (
        ("ttl", int, LEAST_TTL, LARGEST_TTL),
        ("timeout", float, 0.1, 60.0),
        ("quota", int, 1, 2**63),
    ):
        if name in said:
            options[name] = _number(name, said.pop(name), kind=kind, least=least, most=most)
    if said:
        raise InvalidInput(f"an etcd store has no option {min(said)!r}; it knows {_KNOWN}")
    return options


def _tls(said: dict[str, str]) -> Tls | None:
    """TLS settings; None for plain text. A private CA by `ca`, gRPC's default roots by `tls=true`."""
    files = {name: Path(said.pop(name)) for name in ("ca", "cert", "key") if said.get(name)}
    server_name, asked = said.pop("server-name", ""), said.pop("tls", "")
    if asked not in ("", "true", "false"):
        raise InvalidInput("the option tls of an etcd store is true or false")
    if asked == "false" and (files or server_name):
        raise InvalidInput(
            "the address of the etcd store says tls=false but names TLS files or a server name; remove one of them"
        )
    if ("cert" in files) != ("key" in files):
        raise InvalidInput("a client certificate for etcd needs both files: write cert=FILE and key=FILE")
    if not files and not server_name and asked != "true":
        return None
    return Tls(server_name=server_name, **files)


def _number(name: str, text: str, *, kind: Callable[[str], Any], least: float, most: float) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise InvalidInput(f"the option {name} of an etcd store is {text!r}; give a number from {least:g} to {most:g}")
    return value
