"""Which attempt a pod may speak for: its driver, or a settle run of it. Pure; never raises on what an API server may return.

A pod is known by what only the creator of its application could write: the attempt's nonce in its annotations, its name, and the
SparkApplication that owns it. Labels, which anybody may edit, count only where no owner is named (Spark operators before 2.4 wrote it by
their webhook, which could miss it). A second pod of the same application has another name, and speaks for nobody.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.launch.kubeflow import (
    ATTEMPT_LABEL,
    GENERATION_LABEL,
    KEY_LABEL,
    KIND,
    NONCE,
    ROLE_LABEL,
    Role,
    as_list,
    as_map,
    driver_pod_name,
    text_of,
)
from sparkonce.model.assignment import application_name
from sparkonce.model.record import Address


@dataclass(frozen=True, kw_only=True)
class Speaker:
    settles: bool
    """A settle run; else the attempt's driver."""
    pod_uid: str
    application_uid: str | None
    """Of the owner; None where none is named."""


def speaker_of(
    pod: Mapping[str, Any], address: Address, generation: int, attempt: int, *, nonce: str
) -> Speaker | None:
    """None: this pod is neither the driver nor a settle run of that attempt."""
    metadata = as_map(pod.get("metadata"))
    labels, annotations = as_map(metadata.get("labels")), as_map(metadata.get("annotations"))
    if not (nonce and hmac.compare_digest(text_of(annotations.get(NONCE)).encode(), nonce.encode())):
        return None
    application = application_name(address, generation, attempt)
    suffix = re.escape(driver_pod_name(""))
    named = re.fullmatch(rf"({re.escape(application)}(-s[1-9]\d{{0,5}})?){suffix}", text_of(metadata.get("name")))
    if named is None:
        return None
    settles = named[2] is not None
    role = text_of(labels.get(ROLE_LABEL))
    if role not in ({"", Role.SETTLE} if settles else {""}):
        return None
    owners = [each for each in map(as_map, as_list(metadata.get("ownerReferences"))) if each.get("kind") == KIND]
    own = [text_of(each.get("uid")) for each in owners if each.get("name") == named[1]]
    if owners and not own:
        return None
    expected = {KEY_LABEL: address.hash20, GENERATION_LABEL: str(generation), ATTEMPT_LABEL: str(attempt)}
    if not owners and any(labels.get(name) != value for name, value in expected.items()):
        return None
    return Speaker(settles=settles, pod_uid=text_of(metadata.get("uid")), application_uid=own[0] if own else None)
