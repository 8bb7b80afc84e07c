"""The CustomResourceDefinition, generated from the typed spec: `python -m sparkonce.model.crd > crds/idempotentjobs.yaml`.

Pydantic's JSON schema is not a structural schema: it has references, unions with null, and defaults that carry nulls. They are resolved
here, and what JSON schema cannot express (immutability, exactly one of) is added as CEL rules. Only static defaults are written; the
default of an object is `{}`, so that the API server fills in its fields' defaults.

The rules repeat those checks of `model.spec` that the API server can make at admission; the operator makes the others (field classes,
misspelt template fields, forged conf).
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from sparkonce.model.crd_status import status_schema
from sparkonce.model.manifest import dump
from sparkonce.model.spec import API_VERSION, DEFAULT_REVISION, KIND, IdempotentJob, JobSpec, ResourceModel

PLURAL = "idempotentjobs"
HEADER = "# Generated from operator/sparkonce/model/spec.py by `make crd`; edit that file, not this one.\n"

Schema = dict[str, Any]

_LIMITS = {"enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "required"}
_KEPT = _LIMITS | {"type", "description", "items", "properties", "additionalProperties"}
_IMMUTABLE = "is immutable: another key is another IdempotentJob"


def crd() -> Schema:
    """The whole CustomResourceDefinition, as plain JSON."""
    group, version = API_VERSION.split("/")
    schema = {
        "description": (IdempotentJob.__doc__ or "").strip(),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema(),
            "status": status_schema(),
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["ij", "idemjob"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(),
                }
            ],
        },
    }


def spec_schema() -> Schema:
    """Structural schema of `spec`, with its rules."""
    generated = JobSpec.model_json_schema(by_alias=True)
    models = {each.__name__: each for each in _parts(JobSpec)}
    schema = _structural(generated, generated.get("$defs", {}), models)
    schema.pop("description", None)
    fields = schema["properties"]
    fields["keyFrom"]["x-kubernetes-list-type"] = "set"
    fields["outputs"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    fields["outputs"]["items"]["x-kubernetes-validations"] = [
        _exactly_one("slotLog", "delta", "iceberg"),
        *_mode_rules(),
    ]
    template = fields["template"]
    template["properties"]["spec"] = _template_spec(template["properties"]["spec"])
    template["x-kubernetes-validations"] = _template_rules()
    schema["x-kubernetes-validations"] = _spec_rules()
    return schema


def _parts(model: type[BaseModel]) -> set[type[BaseModel]]:
    """The model and every ResourceModel: names in JSON schema are class names."""
    return {model, *ResourceModel.__subclasses__()}


def _structural(schema: Schema, definitions: dict[str, Schema], models: dict[str, type[BaseModel]]) -> Schema:
    """Resolves references and unions with null, and drops titles; `_with_defaults` adds defaults."""
    own = {key: value for key, value in schema.items() if key not in {"$ref", "anyOf"}}
    if "$ref" in schema:
        return _structural({**definitions[schema["$ref"].rpartition("/")[2]], **own}, definitions, models)
    if "anyOf" in schema:
        (only,) = (each for each in schema["anyOf"] if each != {"type": "null"})
        return _structural({**only, **own}, definitions, models)
    kept = {key: value for key, value in schema.items() if key in _KEPT}
    if "properties" in kept:
        kept.pop("additionalProperties", None)  # unknown fields are pruned by the API server, or refused by kubectl
        model = models.get(schema.get("title", ""))
        explained = _docstrings(model) if model else {}
        fields = {
            name: _structural(dict(sorted((each | explained.get(name, {})).items())), definitions, models)
            for name, each in kept["properties"].items()
        }
        kept["properties"] = _with_defaults(fields, model)
    if "items" in kept:
        kept["items"] = _structural(kept["items"], definitions, models)
    return kept


def _docstrings(model: type[BaseModel]) -> dict[str, Schema]:
    """The description of each field, by alias: the docstring below it. Pydantic can read them itself, but only when the class is built,
    which took a third of the time in which a command imports the models."""
    texts: dict[str, Schema] = {}
    for field, text in pairwise(_classes(model.__module__)[model.__name__].body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                texts[model.model_fields[name].alias or name] = {"description": inspect.cleandoc(said)}
    return texts


@functools.cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes at the top of a module, where models are written. `inspect.getsource` of a class parses the whole module each time."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {each.name: each for each in body if isinstance(each, ast.ClassDef)}


def _with_defaults(fields: dict[str, Schema], model: type[BaseModel] | None) -> dict[str, Schema]:
    """Adds defaults as YAML spells them, durations as text; an empty map or list is no default."""
    defaults = model.model_construct().model_dump(mode="json", by_alias=True, exclude_none=True) if model else {}
    for name, schema in fields.items():
        default = defaults.get(name)
        if isinstance(default, dict) and "properties" in schema:
            schema["default"] = {}  # the API server then fills in the fields' defaults
        elif default not in (None, [], {}):
            schema["default"] = default
    return fields


def _template_spec(generated: Schema) -> Schema:
    policy = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {"type": {"type": "string", "maxLength": 63}},
    }
    return {
        "description": generated["description"],
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {"restartPolicy": policy, "timeToLiveSeconds": {"type": "integer"}},
    }


def _exactly_one(*fields: str) -> Schema:
    count = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in fields)
    return {"rule": f"{count} == 1", "message": f"must have exactly one of {', '.join(fields)}"}


def _mode_rules() -> list[Schema]:
    appends = "!has(self.mode) || self.mode == 'Append' || self.mode == 'Merge'"
    merges = "has(self.mode) && self.mode == 'Merge'"
    return [
        {
            "rule": f"{appends} || !has(self.onRerun) || self.onRerun == 'Replace'",
            "message": "onRerun must be Replace, or absent, beside a mode that overwrites",
        },
        {
            "rule": f"({merges}) == has(self.on)",
            "message": "on must name the columns that identify a row where mode is Merge, and be absent elsewhere",
        },
        {
            "rule": f"!({merges}) || !has(self.slotLog)",
            "message": "mode must not be Merge for a slotLog; declare a delta or iceberg output",
        },
    ]


def _template_rules() -> list[Schema]:
    policy = "self.spec.restartPolicy"
    return [
        {
            "rule": f"!has({policy}) || !has({policy}.type) || {policy}.type == 'Never'",
            "message": "spec.restartPolicy.type must be Never or absent: attempts are counted by spec.retry",
        },
        {
            "rule": "!has(self.spec.timeToLiveSeconds)",
            "message": "spec.timeToLiveSeconds must be absent: spec.applicationTTL says how long applications stay",
        },
    ]


def _spec_rules() -> list[Schema]:
    revision = f"(has({{0}}.revision) ? {{0}}.revision : '{DEFAULT_REVISION}')"
    keyed_from = "(has({0}.keyFrom) ? {0}.keyFrom : [])"
    places = (
        "(has(o.slotLog) && o.slotLog.path.contains('{revision}')) || "
        "(has(o.delta) && o.delta.path.contains('{revision}')) || "
        "(has(o.iceberg) && (o.iceberg.table.contains('{revision}') || o.iceberg.catalog.contains('{revision}')))"
    )
    return [
        {
            "rule": "(has(self.idempotencyKey) || has(self.operation)) && has(self.operation) == has(self.resource)",
            "message": "must have an idempotencyKey, or operation and resource, or all three",
        },
        {
            "rule": "!has(self.idempotencyKey) || (!has(self.revision) && (!has(self.keyFrom) || self.keyFrom.size() == 0))",
            "message": "revision and keyFrom go with operation and resource, not with idempotencyKey",
        },
        {
            "rule": f"!has(self.revision) || !has(self.outputs) || self.outputs.all(o, {places})",
            "message": "each output's location must contain {revision}, because revision is given",
        },
        {
            "rule": "!has(self.series) || (has(self.outputs) && self.outputs.size() > 0 && self.outputs.all(o, !has(o.slotLog)))",
            "message": "each output must be a delta or iceberg output, because series is given: a slotLog keeps no order",
        },
        {
            "rule": "!has(self.bind) || !has(self.outputs) || self.outputs.size() == 0",
            "message": "outputs must be absent beside bind: that application does not write through sparkonce",
        },
        {
            "rule": "!has(self.bind) || !has(self.onUnknown) || self.onUnknown != 'Retry'",
            "message": "onUnknown must not be Retry beside bind: an application that is followed is never run again",
        },
        {
            "rule": "!has(self.bind) || (has(oldSelf.bind) && self.bind == oldSelf.bind)",
            "message": "bind may only be removed: what a generation follows is in its record",
        },
        *(
            {
                "rule": f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
                "message": f"{name} {_IMMUTABLE}",
            }
            for name in ("idempotencyKey", "operation", "resource")
        ),
        {
            "rule": f"{revision.format('self')} == {revision.format('oldSelf')}",
            "message": f"revision {_IMMUTABLE}",
        },
        {
            "rule": f"{keyed_from.format('self')} == {keyed_from.format('oldSelf')}",
            "message": f"keyFrom {_IMMUTABLE}",
        },
    ]


def _columns() -> list[Schema]:
    def column(name: str, path: str, kind: str = "string", **more: Any) -> Schema:
        return {"name": name, "type": kind, "jsonPath": path, **more}

    return [
        column("Phase", ".status.phase"),
        column("Role", ".status.role"),
        column("Generation", ".status.generation", "integer"),
        column("Attempt", ".status.attempt", "integer"),
        column("Key", ".status.key", priority=1),
        column("Application", ".status.application", priority=1),
        column("Age", ".metadata.creationTimestamp", "date"),
        column("Message", ".status.message"),  # the last one: it is a sentence
    ]


if __name__ == "__main__":
    sys.stdout.write(HEADER + dump(crd()))
