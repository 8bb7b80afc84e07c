"""The caller that a client certificate names, for people whose cluster gives them a certificate and no right to make tokens.

The TLS handshake has verified the certificate against the CA that the gateway was given, for client authentication, and that the caller has
its key. As at the API server, the common name is the user and each organization a group; what they may do is asked by SubjectAccessReview.
Unlike there, a certificate cannot make its holder a part of Kubernetes: a user `system:...` (a service account, a node) is refused, and
groups `system:...` (`system:masters`) are left out, so that a CA of people cannot sign more than people.

Not accepted: a certificate that a proxy reports in a header, since any client that reaches the gateway could send that header.
There are no lists of revoked certificates, as at the API server: they should be short-lived.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

from sparkonce.commands.callers import Caller
from sparkonce.gateway.problem import ProblemResponse

_KUBERNETES = "system:"
_EVERYBODY = "system:authenticated"


def named_by(certificate: Mapping[str, Any], *, now: float | None = None) -> Caller:
    """The caller that a verified certificate names. `now`: seconds since the epoch.

    Raises:
        ProblemResponse: 401: it has expired since its connection began, or its subject names no person.
    """
    if ssl.cert_time_to_seconds(str(certificate.get("notAfter"))) <= (time.time() if now is None else now):
        raise ProblemResponse(401, "the client certificate has expired; connect again with a new one", close=True)
    names = list(_values(certificate, "commonName"))
    if len(names) != 1 or not names[0].strip():
        raise ProblemResponse(
            401,
            f"the subject of the client certificate has {len(names)} common names; it must have one, the user's name",
        )
    [name] = names
    if name.startswith(_KUBERNETES):
        raise ProblemResponse(
            401,
            f"the client certificate is for {name}, which is no person; send the token of a service account instead",
        )
    groups = [each for each in _values(certificate, "organizationName") if not each.startswith(_KUBERNETES)]
    return Caller(name=name, groups=(*groups, _EVERYBODY), for_gateway=True)


def _values(certificate: Mapping[str, Any], field: str) -> Iterator[str]:
    for relative_name in certificate.get("subject", ()):
        for key, value in relative_name:
            if key == field:
                yield str(value)
