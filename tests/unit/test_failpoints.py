"""Failpoints: parsing of plans, the effect of each action on a real process, and that names, code and page agree."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.child import frozen
from harness.eventually import assert_eventually
from harness.patience import completed, output_of
from sparkonce import failpoints
from sparkonce.failpoints import NAMES, FailpointError, hit, markdown, parse

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "sparkonce"
POINT = "driver.current"
OTHER = "driver.stage.before"

PROGRAM = f"""
from sparkonce.failpoints import hit
for turn in range(3):
    print("before", turn, flush=True)
    hit("{POINT}")
    print("after", turn, flush=True)
"""
"""Hits a failpoint three times; its output shows how far it got."""


def environment(plan: str, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARKONCE_FAILPOINTS")}
    return {**clean, "SPARKONCE_FAILPOINTS": plan, **more}


def run(plan: str, **more: str) -> tuple[int, list[str], str]:
    done = completed([sys.executable, "-c", PROGRAM], 60, env=environment(plan, **more))  # takes long by a defect only
    return done.returncode, done.stdout.split("\n")[:-1], done.stderr


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets the test set the plan of this process through the environment."""
    for name in ("SPARKONCE_FAILPOINTS", "SPARKONCE_FAILPOINTS_LOG", "SPARKONCE_FAILPOINTS_ONCE"):
        monkeypatch.delenv(name, raising=False)
    failpoints.reset()
    yield monkeypatch
    monkeypatch.undo()
    failpoints.reset()


def acts(count: int) -> list[bool]:
    """For each of `count` hits, whether it raised."""
    happened = []
    for _ in range(count):
        try:
            hit(POINT)
        except FailpointError:
            happened.append(True)
        else:
            happened.append(False)
    return happened


# --- plans


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ("raise", [True, True, True, True]),
        ("off", [False, False, False, False]),
        ("2*off->raise", [False, False, True, True]),
        ("1*raise", [True, False, False, False]),
        ("1*raise->off", [True, False, False, False]),
        ("1*off->1*raise->1*off->raise", [False, True, False, True]),
        ("0*raise->1*off->raise", [False, True, True, True]),
        (" 1*off -> raise ", [False, True, True, True]),
        ("sleep(0)", [False, False, False, False]),
    ],
)
def test_terms_apply_one_after_the_other(plan: pytest.MonkeyPatch, terms: str, expected: list[bool]) -> None:
    """Each term applies to its N hits, the last one to all further hits; a plan that is used up does nothing."""
    plan.setenv("SPARKONCE_FAILPOINTS", f"{POINT}={terms}")
    failpoints.reset()
    assert acts(4) == expected


def test_points_count_for_themselves(plan: pytest.MonkeyPatch) -> None:
    """Hits of one point do not use up another's terms; a point without terms does nothing."""
    plan.setenv("SPARKONCE_FAILPOINTS", f"{POINT}=1*off->raise; {OTHER}=raise;")
    failpoints.reset()
    hit("driver.stage.after")
    with pytest.raises(FailpointError, match=OTHER):
        hit(OTHER)
    assert acts(2) == [False, True]


def test_without_a_plan_nothing_happens(plan: pytest.MonkeyPatch) -> None:
    """Failpoints are off unless the environment enables them."""
    for name in NAMES:
        hit(name)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("driver.comit.after=kill", "driver.comit.after"),
        ("kill", "kill"),
        (f"{POINT}", POINT),
        (f"{POINT}=explode", "explode"),
        (f"{POINT}=2*", "2*"),
        (f"{POINT}=sleep(soon)", "sleep(soon)"),
        (f"{POINT}=off->kil", "kil"),
        (f"{POINT}=kill,off", "kill,off"),
    ],
)
def test_what_means_nothing_is_refused_with_one_sentence(text: str, names: str) -> None:
    """A plan with a typo would test nothing: an unknown point or action is an error of one line that names it and says what to write."""
    with pytest.raises(ValueError, match=re.escape(names)) as refused:
        parse(text)
    said = str(refused.value)
    assert "\n" not in said and said.startswith("SPARKONCE_FAILPOINTS ")
    assert "docs/failpoints.md" in said or "write [N*]off|kill" in said


def test_the_examples_are_plans() -> None:
    """The example plans of the module and of its page parse."""
    shown = re.findall(r'SPARKONCE_FAILPOINTS="([^"]+)"', f"{failpoints.__doc__}{markdown()}")
    assert len(shown) == 2
    for text in shown:
        assert parse(text)


# --- real processes


def test_kill_ends_the_process_at_the_point() -> None:
    """SIGKILL at the second hit: nothing after the point runs, no handler and no flush."""
    code, printed, _ = run(f"{POINT}=1*off->kill")
    assert (code, printed) == (-signal.SIGKILL, ["before 0", "after 0", "before 1"])


def test_exit_ends_the_process_with_its_code() -> None:
    """The process ends at the point with the given code."""
    code, printed, _ = run(f"{POINT}=exit(7)")
    assert (code, printed) == (7, ["before 0"])


def test_raise_is_an_error_at_the_point() -> None:
    """The point raises FailpointError, which names it."""
    code, printed, said = run(f"{POINT}=2*off->raise")
    assert code == 1 and printed[-1] == "before 2"
    assert f"FailpointError: failpoint {POINT}" in said


def test_sleep_delays_and_goes_on() -> None:
    """The process waits at each hit and then finishes normally."""
    script = f'import time; from sparkonce.failpoints import hit; t = time.monotonic(); hit("{POINT}"); print(time.monotonic() - t)'
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(f"{POINT}=sleep(50)"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) >= 0.05


def test_stop_freezes_until_somebody_continues() -> None:
    """SIGSTOP at the second hit: the process exists and does nothing; after SIGCONT it continues after the point."""
    plan = environment(f"{POINT}=1*off->1*stop")
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=plan, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert_eventually(lambda: frozen(child.pid), 30)
            assert child.poll() is None
            child.send_signal(signal.SIGCONT)
            printed, _ = output_of(child, 30)
        finally:
            child.kill()
    assert child.returncode == 0
    assert printed.split("\n")[:-1] == ["before 0", "after 0", "before 1", "after 1", "before 2", "after 2"]


def test_a_bad_plan_ends_the_process_at_its_first_point() -> None:
    """A process whose plan has a typo must not continue as if it were tested."""
    code, printed, said = run("driver.comit=kill")
    assert code == 1 and printed == ["before 0"] and "which does not exist" in said


def test_the_log_counts_every_hit(tmp_path: Path) -> None:
    """With a log file each hit of each process is a line: its name, and the action if there was one, even if that ended the process."""
    log = tmp_path / "hits"
    run(f"{POINT}=1*off->kill", SPARKONCE_FAILPOINTS_LOG=str(log))
    run(f"{OTHER}=kill", SPARKONCE_FAILPOINTS_LOG=str(log))
    assert log.read_text().split("\n")[:-1] == [POINT, f"{POINT}=kill", POINT, POINT, POINT]


def test_once_kills_one_process_in_all(tmp_path: Path) -> None:
    """With a folder for it, a point kills the first process that reaches it and lets all later ones pass."""
    codes = [run(f"{POINT}=kill", SPARKONCE_FAILPOINTS_ONCE=str(tmp_path))[0] for _ in range(3)]
    assert codes == [-signal.SIGKILL, 0, 0]


def test_the_tally_names_each_point_with_a_fault(tmp_path: Path) -> None:
    """With a folder for it, a performed action leaves its point's name there before it ends the process; a hit without one does not."""
    run(f"{POINT}=1*off->kill;{OTHER}=2*off", SPARKONCE_FAILPOINTS_TALLY=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [POINT]


# --- names, code and page agree


def hits_in(path: Path) -> set[str]:
    """Names of all points that a module hits. For `hit(f"{point}.before")` each text of the module that can be such a point counts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found: set[str] = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name != "hit":
            continue
        match call.args[0]:
            case ast.Constant(value=str(literal)):
                found.add(literal)
            case ast.JoinedStr(values=[ast.FormattedValue(), ast.Constant(value=str(ending))]):
                stems = {text for text in texts if re.fullmatch(r"[a-z]+(\.[a-z]+)+", text) and text not in NAMES}
                found |= {stem + ending for stem in stems}
            case other:
                raise AssertionError(
                    f"{path.name}:{call.lineno}: name the point where it is hit, not by {ast.dump(other)}"
                )
    return found


def test_every_point_is_hit_and_every_hit_is_a_point() -> None:
    """NAMES is exactly what the code hits: a plan for any other point would test nothing."""
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "failpoints.py"]
    hit_somewhere = {name: path.name for path in modules for name in hits_in(path)}
    assert {name: where for name, where in hit_somewhere.items() if name not in NAMES} == {}
    assert NAMES.keys() - hit_somewhere.keys() == set()


def test_the_page_is_fresh() -> None:
    """docs/failpoints.md is what `python -m sparkonce.failpoints` prints."""
    command = [sys.executable, "-m", "sparkonce.failpoints"]
    printed = subprocess.run(command, env=environment(""), capture_output=True, text=True, check=True).stdout
    assert printed == markdown()
    page = (ROOT / "docs" / "failpoints.md").read_text(encoding="utf-8")
    assert page == printed, "run: python -m sparkonce.failpoints > docs/failpoints.md"


THREADED = f"""
import os, threading
from sparkonce.failpoints import hit

def work():
    hit("{POINT}")
    os.write(1, b"went on")

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_a_thread_that_stops_goes_no_further() -> None:
    """The stop reaches the thread that hit the point, not first another one beside which it goes on. Several processes, because the second
    would be luck."""
    for _ in range(5):
        command = [sys.executable, "-c", THREADED]
        with subprocess.Popen(command, env=environment(f"{POINT}=stop"), stdout=subprocess.PIPE) as process:
            try:
                assert_eventually(lambda pid=process.pid: frozen(pid), 30.0)  # type: ignore[misc] # a default in a lambda has no type
                assert process.stdout is not None
                os.set_blocking(process.stdout.fileno(), False)
                assert process.stdout.read() is None
            finally:
                process.kill()
