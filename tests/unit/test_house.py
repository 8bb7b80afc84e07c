"""The house: what holds for the repository as a whole, whatever the code in it does."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from harness.eventually import assert_eventually

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "sparkonce"
MAX_LINES = 450  # about 400 wants to be two files; the rest is room to finish a thought


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """What the command prints; fails the test with all it printed when it does not exit with 0."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def files_of_the_repository() -> list[Path]:
    """Every file that is in git or would be added: what a clone has, and what the next commit brings."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


# --- operator/ is a source root ---


def test_operator_is_no_package() -> None:
    """`operator/` has no `__init__.py`, so it can never be imported instead of the standard library's module."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "operator.py").exists()


def test_operator_is_the_standard_librarys_from_the_root() -> None:
    """A program that is started in the repository's root and imports `operator` afresh gets Python's own."""
    script = "import sys; sys.modules.pop('operator', None); import operator; print(operator.__file__)"
    found = Path(run(sys.executable, "-c", script).strip())
    assert found.parent == Path(sysconfig.get_path("stdlib"))


# --- the wheel ---


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the locked backend without a network."""
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", target)
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_holds_only_sparkonce(wheel: Path) -> None:
    """The wheel holds `sparkonce/`: every module, the mark that it is typed, its metadata, the licence, and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {name.split("/")[0] for name in names} == {"sparkonce", f"sparkonce-{version}.dist-info"}
    assert f"sparkonce-{version}.dist-info/licenses/LICENSE" in names
    modules = {f"sparkonce/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*.py")}
    assert "sparkonce/py.typed" in names
    assert modules <= set(names)


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Installed alone, the wheel imports with its core dependencies; with the extra `cli` the command knows its version."""
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    install(python, str(wheel))
    where = run(python, "-c", "import sparkonce; print(sparkonce.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path))

    install(python, f"{wheel}[cli]")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version in run(python, "-m", "sparkonce", "--version", cwd=tmp_path)
    assert version in run(python.parent / "sparkonce", "--version", cwd=tmp_path)


def install(python: Path, requirement: str) -> None:
    """Install at the locked versions: from uv's cache, which set-up has filled, or else from the machine's index."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    command += ["--constraint", str(ROOT / "requirements.lock"), requirement]
    if subprocess.run([*command, "--offline"], capture_output=True, check=False).returncode != 0:
        run(*command)


# --- what the files say ---

# Written apart, so that this file does not name them itself.
HOSTS = [
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("piwheels", "org"),
    ("anaconda", "org"),
    ("maven", "org"),
    ("npmjs", "org"),
    ("golang", "org/x"),
    ("crates", "io"),
    ("debian", "org"),
    ("ubuntu", "com"),
]
MACHINE_PATHS = ["root", "work", "opt/" + "wheels"]
NAMES_A_REGISTRY = re.compile("|".join(rf"\b{name}\.{domain}\b" for name, domain in HOSTS))
NAMES_A_MACHINE = re.compile(rf"(?<![\w.$}}/-])/(?:{'|'.join(MACHINE_PATHS)})(?=/|['\"\s]|$)", re.MULTILINE)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (NAMES_A_REGISTRY, "https://files.python" + "hosted.org/packages", True),
        (NAMES_A_REGISTRY, "--index-url https://py" + "pi.org/simple", True),
        (NAMES_A_REGISTRY, "the PyPI package etcd3", False),
        (NAMES_A_MACHINE, "cd /" + "work/main", True),
        (NAMES_A_MACHINE, "HOME=/" + "root", True),
        (NAMES_A_MACHINE, "--find-links /opt/" + "wheels", True),
        (NAMES_A_MACHINE, "/opt/spark/work/app", False),
        (NAMES_A_MACHINE, "a frame/work of/root causes", False),
    ],
)
def test_the_patterns_find_what_they_should(pattern: re.Pattern[str], text: str, found: bool) -> None:
    """The patterns below find package indexes and places on one machine, and nothing that only looks alike."""
    assert bool(pattern.search(text)) is found


def test_no_file_names_a_registry_or_a_machine() -> None:
    """No file names a package index or a path of somebody's machine: where things come from is the machine's matter."""
    guilty = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files_of_the_repository()
        for number, line in enumerate(path.read_bytes().decode("utf-8", errors="replace").splitlines(), 1)
        if NAMES_A_REGISTRY.search(line) or NAMES_A_MACHINE.search(line)
    ]
    assert guilty == []


def test_no_python_file_is_too_long() -> None:
    """A Python file of over 450 lines wants to be two."""
    python_files = [path for path in files_of_the_repository() if path.suffix == ".py"]
    assert PACKAGE / "__init__.py" in python_files
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in python_files}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_every_test_states_its_fact() -> None:
    """Every test has a docstring: the fact that it proves."""
    silent = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
                continue
            if not ast.get_docstring(node):
                silent.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert silent == []


def test_every_ignore_has_its_reason() -> None:
    """Each rule that ruff is told to ignore stands on a line of its own, with the reason beside it."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    ignored = [line for line in lines if re.match(r'\s+"[A-Z]{1,5}\d*",', line)]
    assert len(ignored) > 20
    assert [line for line in ignored if not re.search(r'", # .{5,}', line)] == []


# --- layers and imports ---


def lint_imports(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Check the layers without a cache: a cached graph of another run would make the answer worthless."""
    command = [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_the_layers_hold() -> None:
    """No module imports from a layer above its own, and what is confined to a room is used nowhere else."""
    done = lint_imports()
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("model/zz.py", "import sparkonce.store.protocol", "layers"),
        ("sink/zz.py", "def f():\n    import sparkonce.engine.decide", "layers"),
        ("nowhere/__init__.py", "", "layers"),
        ("model/zz.py", "import os", "pure"),
        ("model/zz.py", "import sqlite3", "pure"),
        ("engine/zz.py", "import sqlalchemy", "sql"),
        ("engine/zz.py", "def f():\n    import pyspark", "spark"),
        ("engine/zz.py", "import rich", "terminal"),
        ("engine/zz.py", "import kopf", "kopf"),
        ("engine/zz.py", "import kubernetes", "kubernetes"),
        ("store/zz.py", "import grpc", "grpc"),
    ],
)
def test_a_broken_layer_is_seen(tmp_path: Path, module: str, statement: str, contract: str) -> None:
    """Each contract can fail: one forbidden import, even inside a function, breaks it, and an unplaced room breaks the layers."""
    shutil.copytree(PACKAGE, tmp_path / "sparkonce", ignore=shutil.ignore_patterns("__pycache__"))
    bad = tmp_path / "sparkonce" / module
    bad.parent.mkdir(exist_ok=True)
    bad.write_text(f"{statement}\n")
    done = lint_imports("--contract", contract, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 broken" in done.stdout or "sparkonce.nowhere" in done.stdout + done.stderr


IMPORT_ALL = """
import importlib, pkgutil, sys
import sparkonce
names = [m.name for m in pkgutil.walk_packages(sparkonce.__path__, "sparkonce.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names), *[heavy for heavy in ("pyspark", "pandas") if heavy in sys.modules])
"""


def test_importing_every_module_does_not_import_pyspark() -> None:
    """PySpark and pandas are imported only inside functions: the whole package is imported without either."""
    count, *heavy = run(sys.executable, "-c", IMPORT_ALL).split()
    assert int(count) >= len([path for path in PACKAGE.rglob("*.py") if path.stem != "__init__"])
    assert heavy == []


IMPORT_FACE = """
import sys, time
start = time.perf_counter()
import sparkonce
elapsed = time.perf_counter() - start
heavy = ("pyspark", "sqlalchemy", "obstore", "pydantic", "httpx", "yaml", "typer", "rich", "pyarrow", "pandas", "asyncio")
print(elapsed, *[name for name in heavy if name in sys.modules])
"""


def test_the_public_face_imports_nothing_heavy() -> None:
    """`import sparkonce` in somebody's script takes under 100 ms (the best of five) and imports no library."""
    answers = [run(sys.executable, "-c", IMPORT_FACE).split() for _ in range(5)]
    assert [name for _, *names in answers for name in names] == []
    assert min(float(elapsed) for elapsed, *_ in answers) < 0.1


# --- the lock and CI's rule ---


def test_the_lock_fits_and_notices_a_change(tmp_path: Path) -> None:
    """The lock was made from today's dependency tables; a changed dependency makes it stale, a changed comment does not."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/lock.py", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    check = [sys.executable, str(tmp_path / "scripts/lock.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0

    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text("# another comment\n" + pyproject.read_text())
    assert subprocess.run(check, check=False).returncode == 0

    pyproject.write_text(pyproject.read_text().replace('"httpx>=', '"httpx>=0.1,>='))
    stale = subprocess.run(check, capture_output=True, text=True, check=False)
    assert stale.returncode == 1
    assert "make lock" in stale.stderr


def test_every_locked_package_has_hashes_and_no_address() -> None:
    """Each entry of the lock is one exact version with hashes; none is an address or a path."""
    entries = re.findall(r"^[^\s#].*$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(entries) > 40
    assert [entry for entry in entries if not re.fullmatch(r"[\w.-]+==[\w.+]+( ; .+)? \\", entry)] == []


@pytest.mark.parametrize(("ci", "outcome"), [("true", "1 failed, 1 passed, 1 error"), ("", "1 passed, 2 skipped")])
def test_in_ci_a_skip_is_a_failure(tmp_path: Path, ci: str, outcome: str) -> None:
    """With CI=true a skipped test and a skipped file fail the run and say why; elsewhere they are skipped."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_one.py").write_text(
        "import pytest\ndef test_runs(): pass\ndef test_skips(): pytest.skip('no kubelet here')\n"
    )
    (tmp_path / "test_file.py").write_text("import pytest\npytest.skip('no tier here', allow_module_level=True)\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--continue-on-collection-errors"],
        cwd=tmp_path,
        env={"CI": ci, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in done.stdout.splitlines()[-1]
    assert (done.returncode != 0) is (ci == "true")
    assert "no kubelet here" in done.stdout
    assert "no tier here" in done.stdout


# --- the harness ---


def test_eventually_returns_the_first_value_that_holds() -> None:
    """Waiting ends with the first look that neither fails nor says no, and returns what it saw."""
    looks = iter([0, "", "seen", "too late"])
    assert assert_eventually(lambda: next(looks), 5, interval=0.001) == "seen"
    assert next(looks) == "too late"


def test_eventually_fails_with_what_it_saw_last() -> None:
    """A fact that never holds fails in its time, with the reason of the last look; zero seconds still look once."""
    looks: list[int] = []

    def never() -> None:
        looks.append(1)
        raise AssertionError(f"look {len(looks)}")

    with pytest.raises(AssertionError, match=r"not true within 0 s: look 1$"):
        assert_eventually(never, 0)
    with pytest.raises(AssertionError) as failed:
        assert_eventually(never, 0.05, interval=0.01)
    assert str(failed.value).endswith(f"look {len(looks)}")
    assert len(looks) > 2


def test_eventually_does_not_wait_out_a_defect() -> None:
    """An error that is no assertion is a defect of the test and ends the waiting at the first look."""
    looks: list[int] = []

    def broken() -> bool:
        looks.append(1)
        raise KeyError("typo")

    with pytest.raises(KeyError):
        assert_eventually(broken, 60)
    assert len(looks) == 1


def test_a_folder_in_memory_is_fresh_and_writable(tmpfs_path: Path) -> None:
    """`tmpfs_path` is an empty folder one can write to, in memory where the machine has `/dev/shm`."""
    assert list(tmpfs_path.iterdir()) == []
    (tmpfs_path / "a").write_text("b")
    assert tmpfs_path.is_relative_to("/dev/shm") or not Path("/dev/shm").is_dir()
