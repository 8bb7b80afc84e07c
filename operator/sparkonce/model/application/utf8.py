"""UTF-8 for every process of a job, on a laptop and in pods, whatever locale its sender has.

A JVM takes the encoding of arguments and file names from its locale and replaces characters that it lacks: with `LC_ALL=C` an argument
`Zürich` arrives as `Z??rich`. `-Dsun.jnu.encoding` on a command line does not repair it (tried with Java 17), so the locale itself is set.
Java 17 passes text on to Python in the encoding of `file.encoding`, which the locale implies unless an option says otherwise.

A job that names its own locale keeps it. If that is not UTF-8, and the job has text that it could not carry, the job is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import JsonValue

from sparkonce.model.application.expansion import FORWARDING, environment_texts
from sparkonce.model.validation import Loc, path_text

LOCALE = "C.UTF-8"
"""In glibc since 2.35, earlier in Debian and Red Hat's, and always in musl."""
JVM_OPTION = "-Dfile.encoding=UTF-8"
_DECIDING = ("LC_ALL", "LC_CTYPE", "LANG")
"""Variables that decide the encoding; the first one that is set counts."""
_OTHERS = {"PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE"}
_UTF8 = re.compile(r"[^@]*\.utf-?8(@.*)?", re.IGNORECASE)
_OPTION = re.compile(r"-D(?:file|sun\.jnu)\.encoding=(\S*)")


def about_text(variable: str) -> bool:
    """Whether a variable says how a process reads and writes text: such variables of a sender do not reach the job."""
    return variable.startswith("LC_") or variable == "LANG" or variable in _OTHERS


def pinned(names: Collection[str]) -> dict[str, str]:
    """Variables to set for processes of a job, beside those that it sets itself (`names`)."""
    own_locale = any(name.startswith("LC_") or name == "LANG" for name in names)
    made = {"PYTHONUTF8": "1"}
    if not own_locale:
        made["LC_ALL"] = LOCALE
    elif not set(_DECIDING) & set(names):
        made["LC_CTYPE"] = LOCALE  # beside a locale for sorting, say
    return {name: value for name, value in made.items() if name not in names}


def problems(spec: Mapping[str, JsonValue]) -> Iterator[tuple[Loc, str]]:
    """What would keep a SparkApplication's text from reaching its driver as written, each with its path below the spec."""
    text = next(_beyond_ascii(spec), None)
    if text is None:
        return
    lossy = f"which garbles {path_text(text)}; use UTF-8"
    for loc, value in _deciding(spec):
        if not _UTF8.fullmatch(value):
            yield loc, f"is {value!r}, a locale without UTF-8, {lossy}, such as {LOCALE}, or remove it"
    for loc, options in _driver_options(spec):
        for encoding in _OPTION.findall(options):
            if encoding.strip("\"'").upper() not in ("UTF-8", "UTF8"):
                yield loc, f"sets the encoding {encoding}, {lossy}"


def _deciding(spec: Mapping[str, JsonValue]) -> list[tuple[Loc, str]]:
    """The variable that decides the driver's encoding, if the job sets it."""
    found: dict[str, tuple[Loc, str]] = {}
    for loc, value in environment_texts(spec, "driver"):
        found[_variable(spec, loc)] = (loc, value)
    return next(([found[name]] for name in _DECIDING if found.get(name, ((), ""))[1]), [])


def _variable(spec: Mapping[str, Any], loc: Loc) -> str:
    if loc[0] == "sparkConf":
        return str(loc[1]).removeprefix(FORWARDING["driver"])
    return str(spec["driver"]["env"][loc[2]].get("name")) if loc[1] == "env" else str(loc[2])


def _driver_options(spec: Mapping[str, JsonValue]) -> Iterator[tuple[Loc, str]]:
    driver, conf = spec.get("driver"), spec.get("sparkConf")
    if isinstance(driver, dict) and isinstance(options := driver.get("javaOptions"), str):
        yield ("driver", "javaOptions"), options
    for name in ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"):
        if isinstance(conf, dict) and isinstance(options := conf.get(name), str):
            yield ("sparkConf", name), options


def _beyond_ascii(spec: Mapping[str, JsonValue]) -> Iterator[Loc]:
    """Paths of texts with characters beyond ASCII in what a driver is started with."""
    given = {name: spec.get(name) for name in ("mainApplicationFile", "arguments", "sparkConf", "hadoopConf", "deps")}
    driver = spec.get("driver")
    if isinstance(driver, dict):
        given["driver"] = {name: driver.get(name) for name in ("env", "envVars", "javaOptions")}
    parts: list[tuple[Loc, object]] = [((), given)]
    while parts:
        loc, each = parts.pop(0)
        match each:
            case dict():
                if loc and not all(str(name).isascii() for name in each):
                    yield loc
                parts += [((*loc, str(name)), value) for name, value in each.items()]
            case list():
                parts += [((*loc, index), value) for index, value in enumerate(each)]
            case str() if not each.isascii():
                yield loc
