"""A small synchronous client of a Kubernetes API server, for the tests' own requests.

It is deliberately not the operator's client: a test that looked through the code under test would share its mistakes. It makes one request
per call and neither retries nor caches; an answer that is not a success raises `ApiError` with its code, except that `get` and `delete` of
a missing object return None and False. httpx is slow compared with raw JSON over aiohttp, which matters for benchmarks and not for tests:
the fake Spark operator therefore has its own client.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from harness.eventually import assert_eventually
from sparkonce.launch.kubernetes import Resource

Json = dict[str, Any]

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")

REQUEST_TIMEOUT = 30.0
"""Seconds: an API server just started on two busy cores has answered after eight."""
MANAGER = "sparkonce-tests"
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class ApiError(Exception):
    """The API server's answer is not a success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message


def path_of(resource: Resource, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    parts = ["/apis", resource.group] if resource.group else ["/api"]
    parts.append(resource.version)
    if resource.namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    parts.append(resource.plural)
    return "/".join([*parts, *filter(None, (name, subresource))])


def holds(found: Mapping[str, Any] | None, condition: str) -> bool:
    """Whether the object exists and this condition of its status is true, such as "Ready" or "Established"."""
    conditions = (found or {}).get("status", {}).get("conditions") or []
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)


class Api:
    def __init__(
        self,
        server: str,
        *,
        ca: Path,
        token: str,
        user_agent: str = MANAGER,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        """Authenticates with a token, or with a client certificate and its key."""
        self.server = server
        trust = ssl.create_default_context(cafile=str(ca))
        if certificate is not None:
            trust.load_cert_chain(*map(str, certificate))
        known = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=server,
            verify=trust,
            headers={"User-Agent": user_agent, **known},
            timeout=REQUEST_TIMEOUT,
            trust_env=False,  # the machine's proxy is not for loopback
        )
        self._resources: dict[tuple[str, str], Resource] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        **parameters: str,
    ) -> Json:
        """The answer's JSON. Raises ApiError, or httpx.HTTPError without an answer."""
        answer = self._http.request(
            method,
            path,
            content=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
            params={name: value for name, value in parameters.items() if value},
        )
        try:
            said = answer.json()
        except ValueError:
            said = {"message": answer.text}
        if not answer.is_success:
            raise ApiError(answer.status_code, said.get("reason", ""), said.get("message", ""))
        assert isinstance(said, dict)
        return said

    def metric(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of this metric, as the API server exposes it."""
        answer = self._http.get("/metrics")
        answer.raise_for_status()
        lines = [line for line in answer.text.splitlines() if line.startswith(name + "{")]
        return [(dict(_LABEL.findall(line)), float(line.rpartition(" ")[2])) for line in lines]

    def healthy(self, path: str = "/readyz") -> bool:
        """Whether it answers this path with success now; False without an answer."""
        try:
            return self._http.get(path).is_success
        except httpx.HTTPError:
            return False

    def create(self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None) -> Json:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return self.request("POST", path_of(resource, namespace), body)

    def apply(self, body: Mapping[str, Any], namespace: str | None = None) -> Json:
        """Applies server-side, with force, as one field manager, as `kubectl apply --server-side --force-conflicts` does."""
        resource = self.resource(body["apiVersion"], body["kind"])
        metadata = body["metadata"]
        path = path_of(resource, metadata.get("namespace", namespace), metadata["name"])
        kind = "application/apply-patch+yaml"  # JSON is YAML
        return self.request("PATCH", path, body, content_type=kind, fieldManager=MANAGER, force="true")

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json | None:
        try:
            return self.request("GET", path_of(resource, namespace, name))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Sequence[Json]:
        found = self.request("GET", path_of(resource, namespace), labelSelector=labels, fieldSelector=fields)
        items = found["items"]
        assert isinstance(items, list)
        return items

    def patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str = "",
    ) -> Json:
        """A JSON merge patch; a `metadata.resourceVersion` or `metadata.uid` in it is a precondition."""
        path = path_of(resource, namespace, name, subresource)
        return self.request("PATCH", path, patch, content_type="application/merge-patch+json")

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        grace: int | None = None,
        propagation: str = "Background",
    ) -> bool:
        """Deletes an object; False if there was none of this name. `grace` in seconds; 0 on a pod is `kubectl delete --force`."""
        options: Json = {"propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self.request("DELETE", path_of(resource, namespace, name), options)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    def wait(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        until: Callable[[Json], object],
        timeout: float = 10.0,
    ) -> Json:
        """Waits until the object satisfies `until` and returns it; otherwise raises AssertionError with its last status."""

        def look() -> Json:
            found = self.get(resource, name, namespace)
            assert found is not None, f"there is no {resource.kind} {name}"
            assert until(found), f"{resource.kind} {name} is {json.dumps(found.get('status'))[:1000]}"
            return found

        return assert_eventually(look, timeout)

    def gone(self, resource: Resource, name: str, namespace: str | None = None, *, timeout: float = 10.0) -> None:
        assert_eventually(lambda: self.get(resource, name, namespace) is None, timeout)

    def resource(self, api_version: str, kind: str) -> Resource:
        """The resource of a kind from the API server's discovery, cached. Raises LookupError if it is not served."""
        known = self._resources.get((api_version, kind))
        if known is not None:
            return known
        group, _, version = api_version.rpartition("/")
        for each in self.request("GET", f"/apis/{api_version}" if group else f"/api/{version}")["resources"]:
            if each["kind"] == kind and "/" not in each["name"]:
                found = Resource(group, version, each["name"], kind, namespaced=each["namespaced"])
                self._resources[api_version, kind] = found
                return found
        raise LookupError(f"the API server does not serve {kind} of {api_version}")
