"""The manner of every part of the resource: frozen, unknown fields refused, camelCase outside and snake_case inside."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel


class Part(BaseModel):
    """A piece of an IdempotentJob. The docstring under a field is its description in the CRD (`kubectl explain`)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: Any) -> Any:
        """`labels:` with nothing behind it is how YAML says null; the API server takes it as not given, and so do we."""
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given
