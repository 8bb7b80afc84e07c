"""Locales of a job's processes: what is pinned, and which jobs are refused because their text would be lost."""

from __future__ import annotations

from typing import Any

import pytest

from harness.manifests import job, template
from sparkonce.model.application.utf8 import about_text, pinned
from sparkonce.model.entrance import check_template
from sparkonce.model.validation import InvalidJob, Loc

UMLAUT = {template("arguments", 1): "Zürich"}
ENV = template("driver", "env")


def variable(name: str, value: str) -> dict[Loc, Any]:
    return {ENV: [{"name": name, "value": value}]}


@pytest.mark.parametrize(
    ("own", "made"),
    [
        ([], {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}),
        (["TZ"], {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}),
        (["LC_ALL"], {"PYTHONUTF8": "1"}),
        (["LANG"], {"PYTHONUTF8": "1"}),
        (["LC_COLLATE"], {"LC_CTYPE": "C.UTF-8", "PYTHONUTF8": "1"}),
        (["PYTHONUTF8", "LC_CTYPE"], {}),
    ],
)
def test_what_a_job_sets_itself_is_not_pinned(own: list[str], made: dict[str, str]) -> None:
    """Nor is it overridden: LC_ALL would override every part of the job's own locale."""
    assert pinned(own) == made


def test_variables_of_a_sender_about_text() -> None:
    """These variables say how the sender's programs read and write text, which does not concern the job."""
    assert all(map(about_text, ("LC_ALL", "LC_TIME", "LANG", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE")))
    assert not any(map(about_text, ("LANGUAGE_MODEL", "PATH", "PYTHONPATH", "TZ")))


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (variable("LC_ALL", "C"), r"driver\.env\[0\]\.value"),
        (variable("LANG", "de_DE.ISO-8859-1"), r"driver\.env\[0\]\.value"),
        ({template("driver", "envVars"): {"LC_CTYPE": "POSIX"}}, r"driver\.envVars\.LC_CTYPE"),
        ({template("sparkConf", "spark.kubernetes.driverEnv.LC_ALL"): "de_DE"}, r"sparkConf\[.*LC_ALL\"\]"),
        ({template("driver", "javaOptions"): "-Xss4m -Dfile.encoding=ISO-8859-1"}, r"driver\.javaOptions"),
        (
            {template("sparkConf", "spark.driver.extraJavaOptions"): "-Dsun.jnu.encoding=latin1"},
            r"extraJavaOptions\"\]",
        ),
    ],
)
def test_a_locale_that_loses_the_jobs_text_is_refused(given: dict[Loc, Any], path: str) -> None:
    """The sentence names the field that sets the locale and the text that would be lost; a job of ASCII alone passes."""
    with pytest.raises(InvalidJob, match=rf"{path}: .*garbles arguments\[1\]; use UTF-8"):
        check_template(job({**given, **UMLAUT}))
    check_template(job(given))


@pytest.mark.parametrize(
    "given",
    [
        variable("LC_ALL", "C.UTF-8"),
        variable("LANG", "de_DE.utf8"),
        variable("LANG", "de_DE.UTF-8@euro"),
        variable("LC_COLLATE", "C"),
        variable("LC_ALL", ""),
        {ENV: [{"name": "LANG", "value": "C"}, {"name": "LC_ALL", "value": "C.UTF-8"}]},
        {template("driver", "javaOptions"): "-Dfile.encoding=utf-8"},
        {template("executor", "envVars"): {"LC_ALL": "C"}},
    ],
)
def test_a_locale_that_carries_the_text_passes(given: dict[Loc, Any]) -> None:
    """The first of LC_ALL, LC_CTYPE and LANG that has a value decides; executors get no arguments."""
    check_template(job({**given, **UMLAUT}))


@pytest.mark.parametrize(
    "lost",
    [
        {template("mainApplicationFile"): "Zürich.py"},
        {template("sparkConf", "spark.example.city"): "Łódź"},
        {template("deps", "pyFiles"): ["東京.py"]},
        {template("driver", "envVars"): {"CITY": "Łódź"}},
    ],
)
def test_text_is_looked_for_wherever_a_driver_gets_it(lost: dict[Loc, Any]) -> None:
    """Text counts in arguments, file names, settings and environment."""
    with pytest.raises(InvalidJob, match="which garbles"):
        check_template(job({**lost, **variable("LC_ALL", "C")}))
