"""Rules for the whole repository, independent of what the code does."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from harness.eventually import assert_eventually
from harness.patience import stretched

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "sparkonce"


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Output of the command; fails the test with that output if the exit code is not 0."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def files_of_the_repository() -> list[Path]:
    """Every file that is in git or would be added, that is, the contents of the next commit."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


# --- operator/ is a source root ---


def test_operator_is_no_package() -> None:
    """`operator/` has no `__init__.py`, so it can never be imported instead of the standard library's module."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "operator.py").exists()


def test_operator_is_the_standard_librarys_from_the_root() -> None:
    """A program that starts in the repository's root and imports `operator` afresh gets Python's own."""
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
    """The wheel holds the modules of `sparkonce/`, the typing marker, its metadata and the licence, and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {name.split("/")[0] for name in names} == {"sparkonce", f"sparkonce-{version}.dist-info"}
    assert f"sparkonce-{version}.dist-info/licenses/LICENSE" in names
    modules = {f"sparkonce/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*.py")}
    assert "sparkonce/py.typed" in names
    assert modules <= set(names)


@pytest.mark.further
@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Installed alone, the wheel imports with its core dependencies. Each program refuses in one sentence with an install command, after
    which it runs: it prints its version, and the plugin gets as far as reading its kubeconfig."""
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    install(python, str(wheel))
    where = run(python, "-c", "import sparkonce; print(sparkonce.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path))

    program, plugin = python.parent / "sparkonce", python.parent / "kubectl-sparkonce"
    sentence = "sparkonce: the package typer is not installed; run `pip install 'sparkonce[{}]'`\n"
    assert refusal(program, "--help") == refusal(python, "-m", "sparkonce", "--help") == sentence.format("cli")
    assert refusal(plugin, "--help") == sentence.format("operator")

    install(python, remedy(refusal(program, "--help")))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version in run(python, "-m", "sparkonce", "--version", cwd=tmp_path)
    assert version in run(program, "--version", cwd=tmp_path)
    assert "no keys in" in run(program, "keys", "list", "--store", "ledger.db", cwd=tmp_path)  # needs all of the extra

    install(python, remedy(refusal(plugin, "list", "--gateway-url", "https://gateway.example")))
    assert "there is no kubeconfig at none" in refusal(plugin, "list", "--kubeconfig", "none", code=3)


def refusal(*command: str | Path, code: int = 2) -> str:
    """Standard error of a command that exits with `code` and writes nothing else."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, ""), done
    return done.stderr


def remedy(sentence: str) -> str:
    """The requirement that the sentence says to install."""
    [command] = re.findall("`(.*)`", sentence)
    pip, verb, requirement = shlex.split(command)
    assert (pip, verb) == ("pip", "install")
    return requirement


def install(python: Path, requirement: str) -> None:
    """Installs the requirement at the locked versions: from uv's cache, which set-up has filled, or else from the machine's index."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    command += ["--constraint", str(ROOT / "requirements.lock"), requirement]
    if subprocess.run([*command, "--offline"], capture_output=True, check=False).returncode != 0:
        run(*command)


# --- contents of files ---

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
    """The patterns find package indexes and paths of one machine, and no text that only resembles them."""
    assert bool(pattern.search(text)) is found


def test_no_file_names_a_registry_or_a_machine() -> None:
    """No file names a package index or a path of one machine: both depend on the machine."""
    guilty = []
    for path in files_of_the_repository():
        text = path.read_text("utf-8", errors="replace")
        for named in filter(None, (pattern.search(text) for pattern in (NAMES_A_REGISTRY, NAMES_A_MACHINE))):
            line = text.count("\n", 0, named.start()) + 1
            guilty.append(f"{path.relative_to(ROOT)}:{line}: {named[0].strip()}")
    assert guilty == []


def test_every_test_states_its_fact() -> None:
    """Every test has a docstring, which states the fact that it proves."""
    silent = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        nodes = ast.parse(path.read_text()).body
        nodes += [node for scope in nodes if isinstance(scope, ast.ClassDef) for node in scope.body]
        tests = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        silent += [
            f"{path.relative_to(ROOT)}: {test.name}"
            for test in tests
            if test.name.startswith("test_") and not ast.get_docstring(test)
        ]
    assert silent == []


def test_every_ignore_has_its_reason() -> None:
    """Each rule that ruff ignores has its own line, with the reason beside it."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    ignored = [line for line in lines if re.match(r'\s+"[A-Z]{1,5}\d*",', line)]
    assert len(ignored) > 20
    assert [line for line in ignored if not re.search(r'", # .{5,}', line)] == []


# --- the layout ---

MODULES_IN_A_ROOM = 16  # more than this and a reader has to scroll; a larger room is divided


def modules_of_the_package() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" and "pb" not in path.parts]


def test_no_room_is_crowded() -> None:
    """No folder of the package has more than 16 modules."""
    rooms = Counter(str(path.parent.relative_to(PACKAGE)) for path in modules_of_the_package())
    assert len(rooms) > 15
    assert {room: count for room, count in rooms.items() if count > MODULES_IN_A_ROOM} == {}


def endings_apart(one: str, other: str) -> bool:
    """Whether two module names differ only by a plural or by a verb's ending (`drive`, `driving`)."""
    short, long = sorted((one, other), key=len)
    if long in {f"{short}s", f"{short}es"}:
        return True
    return any(
        one != other
        and one.removesuffix(a).removesuffix("e") == other.removesuffix(b).removesuffix("e")
        and len(short) > 3
        for a in ("ing", "ed", "")
        for b in ("ing", "ed", "")
        if a != b
    )


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("request", "requests", True),
        ("drive", "driving", True),
        ("rewound", "rewound", False),
        ("open", "opened", True),
        ("status", "status_writer", False),
    ],
)
def test_names_that_differ_by_an_ending_are_found(one: str, other: str, apart: bool) -> None:
    """A plural, a participle and a gerund count as the same name; a longer name with a further word does not."""
    assert endings_apart(one, other) is apart


def test_no_two_modules_differ_by_an_ending() -> None:
    """No two modules of the package have names that differ only by a plural or a verb's ending, which readers would confuse."""
    names = sorted({path.stem for path in modules_of_the_package()} - {"__main__"})
    alike = {(one, other) for at, one in enumerate(names) for other in names[at + 1 :] if endings_apart(one, other)}
    assert alike == set()


def test_a_class_name_has_one_meaning() -> None:
    """No class name is defined in two modules of the package, not even with a leading underscore."""
    homes: dict[str, list[str]] = {}
    for path in modules_of_the_package():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(str(path.relative_to(PACKAGE)))
    assert len(homes) > 300
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def imports_at_run_time(path: Path, known: set[str]) -> set[str]:
    """The modules of the package that are imported when this module is imported."""
    found: set[str] = set()
    waiting: list[ast.stmt] = list(ast.parse(path.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            waiting += [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & known
            found |= {node.module} & known
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One import circle; empty if there is none."""
    done: set[str] = set()

    def follow(path: list[str]) -> list[str]:
        for after in sorted(graph.get(path[-1], set()) - done):
            if after in path:
                return [*path[path.index(after) :], after]
            if found := follow([*path, after]):
                return found
        done.add(path[-1])
        return []

    return next((found for start in sorted(graph) if start not in done and (found := follow([start]))), [])


def test_there_is_no_import_circle() -> None:
    """No chain of imports leads from a module of the package back to itself."""
    names = {
        "sparkonce." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in modules_of_the_package()
    }
    graph = {name: imports_at_run_time(path, set(names)) - {name} for name, path in names.items()}
    assert sum(map(len, graph.values())) > 900
    assert circle(graph) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


# --- layers and imports ---


def lint_imports(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Checks the layers without a cache: the cached graph of another run would make the answer worthless."""
    command = [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_the_layers_hold() -> None:
    """No module imports from a layer above its own, and modules with restricted use are imported nowhere else."""
    done = lint_imports()
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("model/zz.py", "import sparkonce.store.protocol", "layers"),
        ("sink/zz.py", "def f():\n    import sparkonce.attempt.decide", "layers"),
        ("nowhere/__init__.py", "", "layers"),
        ("model/zz.py", "import os", "pure"),
        ("model/zz.py", "import sqlite3", "pure"),
        ("attempt/zz.py", "import sqlalchemy", "sql"),
        ("attempt/zz.py", "def f():\n    import pyspark", "spark"),
        ("attempt/zz.py", "import rich", "terminal"),
        ("attempt/zz.py", "import kopf", "kopf"),
        ("attempt/zz.py", "import kubernetes", "kubernetes"),
        ("store/zz.py", "import grpc", "grpc"),
    ],
)
def test_a_broken_layer_is_seen(tmp_path: Path, module: str, statement: str, contract: str) -> None:
    """Each contract can fail: one forbidden import breaks it, even inside a function, and a room without a layer breaks the layers."""
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
    """PySpark and pandas are imported only inside functions: all modules of the package can be imported without either."""
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
    """`import sparkonce` in a user's script takes under 100 ms, the best of five, and imports no library."""
    answers = [run(sys.executable, "-c", IMPORT_FACE).split() for _ in range(5)]
    assert [name for _, *names in answers for name in names] == []
    assert min(float(elapsed) for elapsed, *_ in answers) < stretched(0.1)


# --- the lock and CI's rule ---


def test_the_lock_fits_and_notices_a_change(tmp_path: Path) -> None:
    """The lock was made from the current dependency tables; a changed dependency makes it stale, a changed comment does not."""
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
    """Each entry of the lock is one exact version with hashes; none is a URL or a path."""
    entries = re.findall(r"^[^\s#].*$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(entries) > 40
    assert [entry for entry in entries if not re.fullmatch(r"[\w.-]+==[\w.+]+( ; .+)? \\", entry)] == []


@pytest.mark.parametrize(("ci", "outcome"), [("true", "1 failed, 1 passed, 1 error"), ("", "1 passed, 2 skipped")])
def test_in_ci_a_skip_is_a_failure(tmp_path: Path, ci: str, outcome: str) -> None:
    """With CI=true a skipped test and a skipped file fail the run and say why; elsewhere they are skipped."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / 'tests'}\n")
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
    """Waiting ends with the first look that neither fails nor returns a false value, and returns that value."""
    looks = iter([0, "", "seen", "too late"])
    assert assert_eventually(lambda: next(looks), 5, interval=0.001) == "seen"
    assert next(looks) == "too late"


def test_eventually_fails_with_what_it_saw_last() -> None:
    """A fact that never holds fails after its time with the reason of the last look; zero seconds still allow one look."""
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
    """Any error other than an assertion is a defect of the test and ends the waiting at the first look."""
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
