"""What a command was asked for: a job file with its parameters and places, or a key that stands for a stored job.

Whatever is relative on the command line is relative to the current folder, whatever is relative in the job file to the file's; both are
settled here, before the key and the fingerprint are made. Every refusal is InvalidInput and touches nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.engine.prepare import Prepared
    from sparkonce.model.spec import IdempotentJob

STANDARD_INPUT = "-"
_YAML = (".yaml", ".yml", ".json")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A job file and what the command line says beside it."""

    file: str
    params: Mapping[str, str]
    outputs: Mapping[str, str]
    """Absolute folders by output name."""
    application: str | None = None
    """Absolute."""

    @classmethod
    def of(
        cls,
        file: str,
        *,
        params: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        application: str | None = None,
    ) -> Self:
        places = pairs("--output", outputs or ())
        return cls(
            file=file,
            params=pairs("--param", params or ()),
            outputs={name: place if "://" in place else str(Path(place).resolve()) for name, place in places.items()},
            application=str(Path(application).resolve()) if application else None,
        )

    @property
    def source(self) -> str:
        return "standard input" if self.file == STANDARD_INPUT else self.file

    @property
    def base(self) -> str:
        """The folder that the job file's relative paths are relative to."""
        return str(Path.cwd() if self.file == STANDARD_INPUT else (Path.cwd() / self.file).resolve().parent)

    def text(self) -> str:
        try:
            data = sys.stdin.buffer.read() if self.file == STANDARD_INPUT else Path(self.file).read_bytes()
            return data.decode()
        except FileNotFoundError:
            raise InvalidInput(
                f"the job file {self.file} does not exist; name a YAML file, or - for standard input"
            ) from None
        except IsADirectoryError:
            raise InvalidInput(f"{self.file} is a folder; name the job file in it") from None
        except UnicodeDecodeError as problem:
            raise InvalidInput(f"{self.source} is not text in UTF-8 (byte {problem.start}); name a YAML file") from None
        except OSError as problem:
            raise InvalidInput(f"the job file {self.source} cannot be read ({problem.strerror})") from None

    def job(self) -> IdempotentJob:
        """InvalidJob names every problem with its path and line."""
        from sparkonce.model.manifest import load

        return load(self.text(), params=self.params, outputs=self.outputs, source=self.source)

    def prepared(self) -> Prepared:
        from sparkonce.engine.prepare import prepare

        return prepare(self.job(), base=self.base, application=self.application)


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """`["a=1"]` to `{"a": "1"}`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals) or (option == "--output" and not value):
            raise InvalidInput(
                f"{option} {text}: write {option} {'NAME=DIR' if option == '--output' else 'NAME=VALUE'}"
            )
        if name in found:
            raise InvalidInput(f"{option} {name} is given twice; keep one of the two")
        found[name] = value
    return found


def is_file(target: str) -> bool:
    """Whether KEY|FILE names a file. InvalidInput: it looks like one and there is none."""
    if target == STANDARD_INPUT or Path(target).is_file():
        return True
    if target.endswith(_YAML):
        raise InvalidInput(f"the job file {target} does not exist; name a YAML file, or a key (`sparkonce keys list`)")
    return False
