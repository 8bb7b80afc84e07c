"""Whom a verified client certificate names: the subject that Python's ssl reports, and its expiry."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme

from sparkonce.errors import InvalidInput
from sparkonce.gateway.certificates import named_by
from sparkonce.gateway.problem import ProblemResponse
from sparkonce.listening.address import Listening

Pairs = tuple[tuple[str, str], ...]


def certificate(*subject: tuple[str, str] | Pairs, until: str = "Jan  1 00:00:00 2100 GMT") -> dict[str, Any]:
    """As getpeercert() returns it; an entry of several pairs is one relative name of several values."""
    names = tuple(each if each and isinstance(each[0], tuple) else (each,) for each in subject)
    return {"subject": names, "notAfter": until}


def test_the_common_name_is_the_user_and_organizations_are_groups() -> None:
    """In any order, several of them, also within one relative name; the group of everyone who is authenticated is added."""
    shown = certificate(
        ("organizationName", "b"), ("commonName", "ann"), (("organizationName", "a"), ("localityName", "x"))
    )
    caller = named_by(shown)
    assert (caller.name, caller.groups) == ("ann", ("b", "a", "system:authenticated"))
    assert (caller.pod, caller.for_gateway, dict(caller.extra)) == (None, True, {})


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (certificate(), "has 0 common names"),
        (certificate(("organizationName", "a")), "has 0 common names"),
        (certificate(("commonName", "a"), ("commonName", "b")), "has 2 common names"),
        (certificate(("commonName", " ")), "it must have one"),
        (certificate(("commonName", "system:serviceaccount:a:b")), "is no person"),
        (certificate(("commonName", "system:node:a")), "is no person"),
        (certificate(("commonName", "a"), until="Jan  1 00:00:00 2020 GMT"), "has expired"),
    ],
)
def test_a_subject_that_names_no_person_is_no_caller(shown: Mapping[str, Any], said: str) -> None:
    """401, in one sentence."""
    with pytest.raises(ProblemResponse, match=said) as refused:
        named_by(shown)
    assert refused.value.status == 401


def test_groups_of_kubernetes_do_not_count() -> None:
    """The API server allows system:masters everything."""
    shown = certificate(("commonName", "a"), ("organizationName", "system:masters"), ("organizationName", "a"))
    assert named_by(shown).groups == ("a", "system:authenticated")


def test_a_connection_does_not_outlive_its_certificate() -> None:
    """The handshake has checked the dates once; each request does it again, to the second."""
    shown = certificate(("commonName", "a"), until="Jan  2 03:04:05 2030 GMT")
    end = ssl.cert_time_to_seconds("Jan  2 03:04:05 2030 GMT")
    assert named_by(shown, now=end - 1).name == "a"
    with pytest.raises(ProblemResponse):
        named_by(shown, now=end)


def test_what_ssl_reports_is_understood() -> None:
    """A real handshake, in memory: the server gets the subject of the client's certificate in the form that is read here."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server)
    authority.issue_cert(common_name="ann", organization_name="team-a").configure_cert(client)
    authority.configure_trust(server)
    authority.configure_trust(client)
    server.verify_mode = ssl.CERT_OPTIONAL
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname="localhost"),
        server.wrap_bio(there, back, server_side=True),
    ]
    over = time.monotonic() + 10
    left = list(ends)
    while left:
        assert time.monotonic() < over
        for each in list(left):
            try:
                each.do_handshake()
                left.remove(each)
            except ssl.SSLWantReadError:
                pass
    caller = named_by(ends[1].getpeercert() or {})
    assert (caller.name, caller.groups) == ("ann", ("team-a", "system:authenticated"))


def test_a_ca_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    """Without TLS, missing, empty, or no PEM: a gateway that trusted nobody, or everybody, would be noticed too late."""
    pair = trustme.CA().issue_cert("localhost")
    (tmp_path / "tls.crt").write_bytes(pair.cert_chain_pems[0].bytes())
    pair.private_key_pem.write_to_path(tmp_path / "tls.key")
    files = {"certificate": tmp_path / "tls.crt", "key": tmp_path / "tls.key"}
    good, empty = tmp_path / "ca.crt", tmp_path / "empty.crt"
    trustme.CA().cert_pem.write_to_path(good)
    empty.touch()
    assert Listening.of("127.0.0.1:1", **files, client_ca=good).client_ca == good
    with pytest.raises(InvalidInput, match="needs TLS"):
        Listening.of("127.0.0.1:1", client_ca=good)
    for wrong in (empty, tmp_path / "tls.key", tmp_path / "none.crt"):
        with pytest.raises(InvalidInput, match="--client-ca"):
            Listening.of("127.0.0.1:1", **files, client_ca=wrong)
