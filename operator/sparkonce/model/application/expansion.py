"""`$(NAME)` in environment values and arguments, as a kubelet expands it before it starts a container.

The rules are those of `third_party/forked/golang/expansion` in Kubernetes: `$(NAME)` becomes the variable's value, `$$` becomes `$` and
escapes what follows, an unknown name and any other `$` stay as they are. A value is expanded once: what it brings in is not expanded again.
An environment entry sees the entries before it; arguments see all of them.

The kubelet reads bytes and writes the one after a lone `$` as a character of its own, so `$é` reaches a container as other bytes. That is
refused in new jobs; `$$é` is passed as `$é`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import JsonValue

from sparkonce.model.validation import Loc

_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")
_GARBLED = re.compile(r"(?:[^$]|^)(?:\$\$)*\$([^\x00-\x7f])")


def expand(text: str, value_of: Callable[[str], str | None]) -> str:
    """The text with each reference replaced. `value_of`: a variable's value; None: there is no variable of this name."""

    def replaced(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        value = value_of(found[2])
        return found[0] if value is None else value

    return _REFERENCE.sub(replaced, text)


def expands(text: str) -> bool:
    """Whether a kubelet would change the text, whatever variables there are."""
    return _REFERENCE.search(text) is not None


def garbled(spec: Mapping[str, JsonValue]) -> Iterator[tuple[Loc, str]]:
    """Texts of a SparkApplication's spec that a kubelet does not pass as they are written, each with its path below the spec."""
    for loc, text in expanded_texts(spec):
        if found := _GARBLED.search(text):
            yield loc, f"has '$' before {found[1]}, which Kubernetes passes as other bytes; write '$${found[1]}'"


def expanded_texts(spec: Mapping[str, JsonValue]) -> Iterator[tuple[Loc, str]]:
    """Texts that are expanded on a cluster: they become arguments or environment values of a container."""
    main = spec.get("mainApplicationFile")
    if isinstance(main, str):
        yield ("mainApplicationFile",), main
    arguments = spec.get("arguments")
    for index, each in enumerate(arguments if isinstance(arguments, list) else ()):
        if isinstance(each, str):
            yield ("arguments", index), each
    for role in ("driver", "executor"):
        yield from environment_texts(spec, role)


def environment_texts(spec: Mapping[str, JsonValue], role: str) -> Iterator[tuple[Loc, str]]:
    """Values of the environment that a spec gives to a role, with their paths; not those that only a cluster can look up."""
    pod = spec.get(role)
    given = pod if isinstance(pod, dict) else {}
    variables, entries, conf = given.get("envVars"), given.get("env"), spec.get("sparkConf")
    for name, value in variables.items() if isinstance(variables, dict) else ():
        if isinstance(value, str):
            yield (role, "envVars", name), value
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict) and isinstance(value := entry.get("value"), str):
            yield (role, "env", index, "value"), value
    for name, value in conf.items() if isinstance(conf, dict) else ():
        if name.startswith(FORWARDING[role]) and isinstance(value, str):
            yield ("sparkConf", name), value


def variable_names(spec: Mapping[str, Any], role: str) -> set[str]:
    """Names of the variables that a spec gives to a role, whatever the field; not those of `envFrom`, which only a cluster can look up."""
    pod, conf, prefix = _map(spec.get(role)), _map(spec.get("sparkConf")), FORWARDING[role]
    found = {str(entry.get("name")) for entry in (*env_entries(pod), *template_env_entries(pod))} | set(
        _map(pod.get("envVars"))
    )
    return found | {name.removeprefix(prefix) for name in conf if name.startswith(prefix)}


def template_env_entries(pod: Mapping[str, Any]) -> list[dict[str, JsonValue]]:
    """Entries of `env` in all containers of a role's pod template."""
    containers = _map(_map(pod.get("template")).get("spec")).get("containers")
    return [entry for each in (containers if isinstance(containers, list) else ()) for entry in env_entries(_map(each))]


def env_entries(container: Mapping[str, Any]) -> list[dict[str, JsonValue]]:
    """Entries of `env` of a role or a container."""
    env = container.get("env")
    return [entry for entry in env if isinstance(entry, dict)] if isinstance(env, list) else []


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


FORWARDING: Mapping[str, str] = {"driver": "spark.kubernetes.driverEnv.", "executor": "spark.executorEnv."}
"""Prefix of the settings that become environment variables of a role."""
