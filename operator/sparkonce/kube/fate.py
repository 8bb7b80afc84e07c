"""Whether an object of ours is gone: the one look after which running work may be stopped.

Gone is an answer, never an absence. A DELETED event also comes when an object stops matching a selector, a list may be of another API
server, a 404 also of a kind that is not served. So all of it is asked live, and in this order, because each look vouches for the one
before it:

1. the object: 404 about this very object, or another UID under its name, or it is being deleted (a finalizer of others keeps it);
2. its namespace is one of those that this process serves, and the API server knows it;
3. its CustomResourceDefinition is there, established, not being deleted, and not younger than the object.

When a CRD is deleted the API server deletes every object of it first, one by one, while it still serves the kind. Those objects were not
withdrawn by the people who sent them, so nothing is stopped. A deleted CRD carries its deletion's time from the first moment on, and the
read of it here is linearizable, which discovery is not. When it is created again the objects are not there, the kind is served, and
the CRD is younger than they were: that they were swept away is all that this says. A namespace that is being deleted is another matter:
whoever deletes it means what is in it. One that is not to be seen at all says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from sparkonce.engine.objects import Fate, ObjectRef
from sparkonce.launch.kubernetes import JOBS, NAMESPACES, Json, Kubernetes, Resource

DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)


async def fate_of(
    kubernetes: Kubernetes,
    ref: ObjectRef,
    *,
    resource: Resource = JOBS,
    scope: Collection[str] | None = None,
    on_found: Callable[[Json], None] = lambda _: None,
) -> Fate:
    """`scope`: the namespaces that this process serves, None for all. `on_found`: gets the object when it is there, which whoever asks
    did not know. ApiUnavailable and ApiRefused: not known."""
    if scope is not None and ref.namespace not in scope:
        return Fate.THERE
    found = await kubernetes.get(resource, ref.namespace, ref.name)
    deleting = found is not None and found["metadata"].get("deletionTimestamp") is not None
    if found is not None and not deleting and _uid(found) in {ref.uid, None}:
        on_found(found)
        return Fate.THERE
    if await kubernetes.get(NAMESPACES, None, ref.namespace) is None:
        return Fate.THERE
    definition = await kubernetes.get(DEFINITIONS, None, f"{resource.plural}.{resource.group}")
    if definition is None or not _in_force(definition):
        return Fate.THERE
    younger = ref.created and str(definition["metadata"].get("creationTimestamp") or "") > ref.created
    return Fate.SWEPT_AWAY if younger else Fate.GONE


def _uid(found: Json) -> str | None:
    uid = found["metadata"].get("uid")
    return uid if isinstance(uid, str) else None


def _in_force(definition: Json) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    said = {each.get("type"): each.get("status") for each in conditions}
    return definition["metadata"].get("deletionTimestamp") is None and said.get("Established") == "True"
