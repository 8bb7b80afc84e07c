"""From a template to a command line: spark-submit's options and where they come from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import harness.fake_submit as fake
from harness.granted import granted
from harness.manifests import job
from sparkonce.errors import InvalidInput
from sparkonce.launch import submit
from sparkonce.launch.local import Command
from sparkonce.launch.submit import absolute, command_for, spark_submit
from sparkonce.model.validation import Loc


def command(folder: Path, *, application: str | None = None, **template: Any) -> Command:
    assignment = granted(folder, "orders", template={"mainApplicationFile": "jobs/load.py", **template}).assignment
    return command_for(application=application)(assignment)


def options(command: Command, name: str) -> list[str]:
    return [value for option, value in zip(command.argv, command.argv[1:], strict=False) if option == name]


def test_paths_are_relative_to_the_job_file(tmp_path: Path) -> None:
    """This holds for main file, Python files, jars, files and archives; URIs are unchanged; the child runs in the job file's folder."""
    deps = {
        "pyFiles": ["lib.py", "/opt/other.py"],
        "jars": ["jars/a.jar", "https://host/b.jar"],
        "files": ["file:///etc/some%20file"],
        "archives": ["env.tar.gz#env"],
    }
    made = command(tmp_path, deps=deps, arguments=["--day", "1"])

    assert made.folder == str(tmp_path)
    assert list(made.argv[-3:]) == [f"{tmp_path}/jobs/load.py", "--day", "1"]
    assert options(made, "--py-files") == [f"{tmp_path}/lib.py,/opt/other.py"]
    assert options(made, "--jars") == [f"{tmp_path}/jars/a.jar,https://host/b.jar"]
    assert options(made, "--files") == ["/etc/some file"]
    assert options(made, "--archives") == [f"{tmp_path}/env.tar.gz#env"]


def test_packages_repositories_and_exclusions_are_passed_on(tmp_path: Path) -> None:
    """Each dependency field of a template is either passed on or listed as skipped; these are passed on."""
    deps = {"packages": ["g:a:1", "g:b:1"], "excludePackages": ["g:c"], "repositories": ["https://host/maven"]}
    made = command(tmp_path, deps=deps)

    assert options(made, "--packages") == ["g:a:1,g:b:1"]
    assert options(made, "--exclude-packages") == ["g:c"]
    assert options(made, "--repositories") == ["https://host/maven"]


def test_the_application_option_replaces_the_main_file(tmp_path: Path) -> None:
    """A script that is inside an image has a local copy."""
    made = command(tmp_path, application="/elsewhere/load.py", mainApplicationFile="local:///opt/load.py")
    assert made.argv[-1] == "/elsewhere/load.py"


def test_a_captured_script_is_the_first_argument_of_a_file_of_ours(tmp_path: Path) -> None:
    """A file that is there, whose main file and arguments are the job's; a job that captures nothing runs as ever."""
    outputs = [{"name": "orders", "slotLog": {"path": "orders"}, "capture": True}]
    template = {"mainApplicationFile": "jobs/load.py", "arguments": ["1"]}
    made = command_for()(granted(tmp_path, template=template, outputs=outputs).assignment)
    assert list(made.argv[-2:]) == [f"{tmp_path}/jobs/load.py", "1"]
    assert Path(made.argv[-3]).name == "capture.py" and Path(made.argv[-3]).is_file()
    assert command(tmp_path).argv[-2:-1] != made.argv[-3:-2]


def test_the_jobs_conf_wins_over_ours_and_master_is_local(tmp_path: Path) -> None:
    """Output is quiet by default, and the application has the attempt's name unless the job gives one."""
    plain = command(tmp_path)
    assert options(plain, "--master") == ["local[*]"]
    assert "spark.ui.enabled=false" in options(plain, "--conf")
    assert any(each.startswith("spark.app.name=so-") for each in options(plain, "--conf"))

    (tmp_path / "other").mkdir()
    made = command(tmp_path / "other", sparkConf={"spark.ui.enabled": "true", "spark.app.name": "mine", "a.b": "1"})
    assert {"spark.ui.enabled=true", "spark.app.name=mine", "a.b=1"} <= set(options(made, "--conf"))
    assert "spark.ui.enabled=false" not in options(made, "--conf")


def test_a_class_and_its_jar(tmp_path: Path) -> None:
    """A Java application is started by its class."""
    made = command(tmp_path, type="Java", mainApplicationFile="app.jar", mainClass="org.example.Main")
    assert options(made, "--class") == ["org.example.Main"]
    assert made.argv[-1] == f"{tmp_path}/app.jar"


def test_the_environment_is_the_jobs_and_python_is_ours(tmp_path: Path) -> None:
    """Python workers run this interpreter unless the job names another."""
    made = command(tmp_path, driver={"env": [{"name": "TZ", "value": "UTC"}]})
    assert made.environment["TZ"] == "UTC"
    assert made.environment["PYSPARK_PYTHON"] == sys.executable

    (tmp_path / "other").mkdir()
    env = [{"name": "PYSPARK_PYTHON", "value": "/usr/bin/python3"}]
    assert command(tmp_path / "other", driver={"env": env}).environment["PYSPARK_PYTHON"] == "/usr/bin/python3"


def test_spark_submit_runs_the_spark_that_it_belongs_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK_HOME is set to the distribution of the chosen spark-submit."""
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    (home / "jars").mkdir()
    monkeypatch.setenv(submit.SUBMIT_ENVIRONMENT, str(home / "bin" / "spark-submit"))
    assert command(tmp_path).environment["SPARK_HOME"] == str(home)


def test_where_there_is_no_spark_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting, no package, no SPARK_HOME and nothing on PATH."""
    monkeypatch.delenv(submit.SUBMIT_ENVIRONMENT, raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(InvalidInput, match=r"no spark-submit was found: install `sparkonce\[local\]`"):
        spark_submit()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.py", "/base/a.py"),
        ("/a.py", "/a.py"),
        ("file:///a%20b.py", "/a b.py"),
        ("file:/a.py", "/a.py"),
        ("local:///opt/a.py", "local:///opt/a.py"),
        ("s3a://bucket/a.py", "s3a://bucket/a.py"),
        ("hdfs:/a.py", "hdfs:/a.py"),
    ],
)
def test_absolute_paths(path: str, expected: str) -> None:
    """Paths are relative to the base, a file URI is its path, and other URIs are left to Spark."""
    assert absolute(path, "/base") == expected


def test_the_stand_in_for_spark_submit_understands_every_option_of_ours(tmp_path: Path) -> None:
    """The crash tests use this command line: the stand-in finds its main file and arguments."""
    deps = {
        each: ["x"] for each in ("pyFiles", "jars", "files", "archives", "packages", "excludePackages", "repositories")
    }
    made = command(tmp_path, deps=deps, arguments=["1"], mainClass="x")
    assert fake.main_file(list(made.argv[1:])) == [f"{tmp_path}/jobs/load.py", "1"]


def test_a_command_really_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs through the stand-in in the job's folder, with its arguments and environment."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "load.py").write_text("import os, sys\nprint(os.getcwd(), os.environ['TZ'], *sys.argv[1:])\n")
    monkeypatch.setenv(submit.SUBMIT_ENVIRONMENT, str(Path(fake.__file__)))
    made = command(tmp_path, arguments=["a b"], driver={"env": [{"name": "TZ", "value": "UTC"}]})
    argv = [sys.executable, *made.argv]
    done = subprocess.run(argv, cwd=made.folder, env=dict(made.environment), capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path} UTC a b\n"


def test_text_of_the_child_is_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's locale is pinned, and the encoding comes after the sender's own Java options; variables that the job sets are kept."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dfile.encoding=ISO-8859-1")
    monkeypatch.setenv("_JAVA_OPTIONS", "-Xmx1g")
    made = command(tmp_path).environment
    assert (made["LC_ALL"], made["PYTHONUTF8"]) == ("C.UTF-8", "1")
    assert made["SPARK_SUBMIT_OPTS"] == "-Dfile.encoding=ISO-8859-1 -Dfile.encoding=UTF-8"
    assert made["SPARK_LAUNCHER_OPTS"] == "-Dfile.encoding=UTF-8"
    assert "_JAVA_OPTIONS" not in made

    monkeypatch.setenv("_JAVA_OPTIONS", "-Dfile.encoding=ISO-8859-1")
    (tmp_path / "own").mkdir()
    own = {"LANG": "de_DE.UTF-8", "SPARK_SUBMIT_OPTS": "-Xss4m"}
    made = command(tmp_path / "own", driver={"envVars": own}).environment
    assert made["_JAVA_OPTIONS"].endswith("-Dfile.encoding=UTF-8")  # it would overrule every command line
    assert {name: made[name] for name in own} == own
    assert "LC_ALL" not in made


def test_text_that_a_missing_locale_would_lose_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal comes before the job is started and names the locale; ASCII text needs none. A reference that only a cluster resolves is
    refused, too."""
    lang: dict[Loc, Any] = {("spec", "template", "spec", "driver", "env"): [{"name": "LANG", "value": "xx_XX.UTF-8"}]}
    text: dict[Loc, Any] = {("spec", "template", "spec", "arguments", 1): "Zürich"}
    submit.check_text(job(text), application=None)
    submit.check_text(job(lang), application=None)
    with pytest.raises(InvalidInput, match=r"the locale xx_XX\.UTF-8 is not installed here"):
        submit.check_text(job({**lang, **text}), application=None)
    monkeypatch.setenv("PATH", "/nowhere")  # as on a C library without the program `locale`
    submit.check_text(job({**lang, **text}), application=None)

    main: dict[Loc, Any] = {("spec", "template", "spec", "mainApplicationFile"): "local:///$(DIR)/job.py"}
    with pytest.raises(InvalidInput, match=r"mainApplicationFile: is expanded on a cluster"):
        submit.check_text(job(main), application=None)
    submit.check_text(job(main), application="/here/job.py")
