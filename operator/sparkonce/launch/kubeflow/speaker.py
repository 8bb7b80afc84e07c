"""Decides for which attempt a pod may call the gateway: as its driver or as a settle run. Pure; never raises on any object of the API
server.

A pod is identified by data that only the creator of its application could write: the attempt's nonce in its annotations, its name, and the
SparkApplication that owns it. Labels, which can be edited, count only if no owner is set (Spark operators before 2.4 set it in their
webhook, which could be bypassed). A second pod of the same application has another name and is refused.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.launch.kubeflow.labels import (
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
from sparkonce.model.record import Address, application_name


@dataclass(frozen=True, kw_only=True)
class Speaker:
    settles: bool
    """True for a settle run, False for the attempt's driver."""
    pod_uid: str
    application_uid: str | None
    """UID of the owner; None if there is none."""


def has_token(pod: Mapping[str, Any] | None, audience: str) -> bool:
    """Whether a token of this audience is projected into the pod, as the launcher does (`launch/kubeflow/spec.py`). Volumes of a pod are
    immutable, so that a pod cannot lose it."""
    spec = as_map(as_map(pod).get("spec"))
    return any(
        as_map(as_map(source).get("serviceAccountToken")).get("audience") == audience
        for volume in map(as_map, as_list(spec.get("volumes")))
        for source in as_list(as_map(volume.get("projected")).get("sources"))
    )


def speaker_of(
    pod: Mapping[str, Any], address: Address, generation: int, attempt: int, *, nonce: str
) -> Speaker | None:
    """The role of a pod in an attempt; None if it is neither its driver nor a settle run of it."""
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
