"""A tenant sends every request that the generator can draw: the other team's results and times are not affected."""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from harness import effort
from harness.apiserver import Cluster
from harness.arrow_stage import table_of
from harness.beside import beside
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import rows_of
from harness.gateways import ACCOUNT, GatewayProcess, a_gateway, bound_token
from harness.kube_api import Json
from harness.kubeflow import Driver, Script
from harness.kubeflow.drivers import assignment_in, job_of, runs_until_stopped, writes_outputs
from harness.kubeflow.script import Code
from harness.ledger_dump import realm_of
from harness.patience import promised
from harness.stage import IN_TIME, Stage, rows
from harness.tenants import Liveness, Process, Tenants, administrator, tenants
from security.acts import POOL, SPEAKS, Act, acts, sound, tenants_job
from security.attacker import ALIVE, LASTING, Attacker, filled
from sparkonce.driver.http_channel import HttpChannel
from sparkonce.errors import StoreUnavailable
from sparkonce.launch.kubernetes import JOBS
from sparkonce.model.identity import explicit
from sparkonce.model.record import gateway_audience

CAMPAIGN = "acts of a random tenant"
LOOK = 20
"""The number of acts after which the tenant looks up its drivers and replaces those that its acts have ended."""
BEFORE = 3
PAYROLL = "payroll"
"""A text in each key of the other team."""


PAIRS = 5
BATCH = 8
"""Jobs: a second or two on a quiet machine."""
PER_SECOND = 20
"""Acts per second of a steady attack. More would take the processors from the operator, since test and operator share them."""
LONGER = 1.2
"""How many times longer another team's jobs may take during an attack."""


@dataclass
class World:
    both: Tenants
    gateway: GatewayProcess
    attacker: Attacker
    folder: Path
    started: int = 0

    @property
    def other(self) -> Stage:
        return self.both.other

    def table(self, name: str) -> Path:
        """A table of the other team."""
        return self.folder / "lake" / self.other.namespace / name

    def sends(self, name: str, code: Code, table: str) -> str:
        """The other team sends a job."""
        key = f"{PAYROLL}-{name}"
        self.other.play(key, Script(code=code))
        body = self.other.job(key, key, outputs=rows(self.table(table)))
        body["spec"]["template"]["spec"]["driver"]["serviceAccount"] = ACCOUNT
        self.other.apply(body)
        return key

    def once(self, key: str) -> None:
        """Asserts that the other team's job has succeeded in one attempt, with one driver."""
        status = self.other.until(key, "Succeeded", timeout=2 * IN_TIME)
        assert (status["attempt"], status["generation"]) == (1, 1), status
        assert len(self.other.runs(key)) == 1

    def stocks(self) -> None:
        """Creates jobs until all objects of the attacker exist and enough of its drivers run, provided that its namespace starts any."""
        missing = ALIVE - self.attacker.refresh()
        names = [f"{LASTING}{self.started + number}" for number in range(missing)]
        self.started += len(names)
        for name in names:
            self.both.attacker.play(name, Script(code=runs_until_stopped))
        there = {each["metadata"]["name"] for each in self.attacker.api.list(JOBS, self.both.attacker.namespace)}
        for name in [*names, *({f"drawn-{number}" for number in range(POOL)} - there)]:
            body = tenants_job(name, name)
            self.attacker.api.create(
                JOBS, json.loads(filled(json.dumps(body), self.attacker.facts)), self.both.attacker.namespace
            )

    def snapshot(self, keys: list[str]) -> Json:
        """Everything stored for these keys of the other team: entries of the ledger, objects, applications, and all files of their
        table."""
        stage = self.other
        hashes = {explicit(key, stage.namespace).key_hash for key in keys}
        ledger = realm_of(stage.etcd, stage.install, stage.namespace)
        return {
            "ledger": {parts: value for parts, value in ledger.items() if hashes & set(parts)},
            "objects": {key: stage.object(key) for key in keys},
            "applications": {key: stage.applications(key) for key in keys},
            "files": {
                str(path): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted(self.table("before").rglob("*"))
                if path.is_file()
            },
        }


@pytest.fixture
def world(cluster: Cluster, ledger_server: Etcd, ledger: str, install: str, tmp_path: Path) -> Iterator[World]:
    """An operator and a gateway for both teams; each may write below a folder of its own."""
    allowed = tmp_path / "allowed.json"
    allowed.write_text(json.dumps([{"prefixes": [f"{tmp_path}/lake/{{namespace}}/"]}]))
    with ExitStack() as stack:
        gateway = stack.enter_context(a_gateway(ledger, install, cluster.kubeconfig, tmp_path))
        options = ("--outputs-allowed", str(allowed), "--gateway-url", gateway.url)
        both = stack.enter_context(
            tenants(cluster, ledger_server, tmp_path, options=options, install=install, sweep=2.0)
        )
        administrator(cluster, both.other.namespace)
        api = stack.enter_context(cluster.server.client(administrator(cluster, both.attacker.namespace)))
        facts = {
            "OWN": both.attacker.namespace,
            "OTHER": both.other.namespace,
            "OTHERHASH": explicit(f"{PAYROLL}-before-0", both.other.namespace).key_hash,
            "LAKE": f"{tmp_path}/lake/{both.attacker.namespace}",
            "OTHERTABLE": f"{tmp_path}/lake/{both.other.namespace}/before",
        }
        yield World(both, gateway, Attacker(both.attacker, gateway, api, facts, PAYROLL), tmp_path)


def beats_until(over: threading.Event, world: World) -> Code:
    """A driver of the other team that sends heartbeats through the gateway until the event is set, and then writes its row."""

    def code(driver: Driver) -> int:
        stage = world.other
        token = world.folder / f"token-{driver.uid}"
        audience = gateway_audience(stage.install)
        token.write_text(bound_token(stage.cluster.api, stage.namespace, ACCOUNT, [audience], driver.pod))
        channel = HttpChannel(assignment_in(driver), token_file=token)
        try:
            while not over.wait(0.5):
                assert not driver.stop.is_set(), "its pod was deleted"
                try:
                    assert channel.renew({}), "its attempt was taken over"
                except StoreUnavailable:  # no answer, on a busy machine; a refusal is another error
                    continue
            job_of(driver, channel).write(table_of(1000), "rows")
        finally:
            channel.close()
        return 0

    return code


def test_the_other_team_does_not_notice_a_random_tenant(world: World, say: Callable[[str], None]) -> None:
    """One namespace sends seals, heartbeats, reports, decisions, objects and statuses of any shape. No process ends or stops answering, and
    each answer is one that a client can act on. The other team's finished keys do not change by a byte, its concurrent jobs take effect
    once each, and the attacker's namespace afterwards takes a new key or says in one sentence why not."""
    finished = [world.sends(f"before-{number}", writes_outputs(number), "before") for number in range(BEFORE)]
    for key in finished:
        world.once(key)
    world.other.settled(*finished)
    before = world.snapshot(finished)
    through = threading.Event()
    long = world.sends("through", beats_until(through, world), "beside")
    world.stocks()
    assert_eventually(lambda: world.attacker.refresh() >= ALIVE, IN_TIME, interval=0.2)
    sent: list[str] = []

    def others_work(over: threading.Event) -> None:
        while not over.is_set() or len(sent) < BEFORE:
            number = len(sent)
            sent.append(
                f"{PAYROLL}-beside-{number}"
            )  # before it is sent: if this thread fails, the key is seen as not run
            world.once(world.sends(f"beside-{number}", writes_outputs(number), "beside"))

    failed: list[str] = []
    played = 0
    drawn = effort.seed(CAMPAIGN)

    @seeded(drawn)
    @settings(
        max_examples=effort.size(CAMPAIGN),
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(acts)
    def play(act: Act) -> None:
        nonlocal played
        if failed:  # raising here would replay the act in another state
            return
        if played % LOOK == 0:
            world.stocks()
        played += 1
        try:
            world.attacker.does(act)
        except AssertionError as wrong:
            failed.append(f"act {played}: {str(act)[:4000]}\n{wrong}\n{world.gateway.tail(30)}")

    processes: list[Process] = [*world.both.operators, world.gateway]
    with ExitStack() as stack:
        probes = [stack.enter_context(Liveness(each)) for each in processes]
        with beside(others_work):
            for verb in SPEAKS:  # shows that the token itself is good
                assert world.attacker.does(sound(verb)) == 200, verb
            play()
        through.set()
    answers = dict(sorted(world.attacker.answers.items()))
    say(f"SEED={effort.base()} ({drawn}): {played} acts, {answers}; {len(sent)} jobs of the other team beside")
    assert not failed, failed[0]
    for each in probes:
        each.well()
        assert "Traceback" not in each.process.tail(10**6), (
            f"a defect: {each.process.tail(10**6).partition('Traceback')[2][:6000]}"
        )
    for key in [long, *sent]:
        world.once(key)
    assert world.snapshot(finished) == before
    assert rows_of(world.table("before")) == dict.fromkeys(range(BEFORE), 1)
    assert rows_of(world.table("beside")) == dict.fromkeys([*range(len(sent)), 1000], 1)
    known = {explicit(key, world.other.namespace).key_hash for key in [*finished, long, *sent]}
    ledger = realm_of(world.other.etcd, world.other.install, world.other.namespace)
    assert {parts[2] for parts in ledger if parts[0] == "key"} == known, "a key that the other team did not send"
    say(f"a new key of the attacker's afterwards: {goes_on(world)}")


def test_the_other_teams_jobs_take_their_time(world: World, say: Callable[[str], None]) -> None:
    """While random acts arrive, batches of the other team's jobs take at most 1.2 times as long as between attacks. The batches alternate
    on the same operator, so both meet the same conditions."""
    drawn, failed = drawn_acts(), list[str]()
    numbers = itertools.count()

    def batch(name: str) -> float:
        """Seconds for a batch of jobs that are sent together."""
        began = time.monotonic()
        keys = [world.sends(f"{name}-{number}", writes_outputs(next(numbers)), "beside") for number in range(BATCH)]
        for key in keys:
            world.once(key)
        return time.monotonic() - began

    def attack(over: threading.Event) -> None:
        for act in itertools.cycle(drawn):
            try:
                world.attacker.does(act)
            except AssertionError as wrong:
                failed.append(f"{str(act)[:4000]}\n{wrong}")
            if failed or over.wait(1 / PER_SECOND):
                return

    batch("warm")
    world.stocks()
    assert_eventually(lambda: world.attacker.refresh() >= ALIVE, IN_TIME, interval=0.2)
    calm, attacked = [], []
    for pair in range(PAIRS):
        calm.append(batch(f"calm-{pair}"))
        with beside(attack):
            attacked.append(batch(f"attacked-{pair}"))
    ratios = sorted(under / quiet for quiet, under in zip(calm, attacked, strict=True))
    acts_sent = sum(world.attacker.answers.values())
    times = f"{statistics.median(calm):.2f} s between attacks and {statistics.median(attacked):.2f} s under them ({acts_sent} acts)"
    spread = f"from {ratios[0]:.2f} to {ratios[-1]:.2f} in {PAIRS} pairs"
    say(f"{BATCH} jobs of the other team took {times}: {statistics.median(ratios):.2f} times, {spread}")
    assert not failed, failed[0]
    assert acts_sent > PAIRS, "the attack did not take place"
    assert statistics.median(attacked) < promised(LONGER * statistics.median(calm))


def drawn_acts() -> list[Act]:
    """Some of the campaign's acts, for an attack at a steady pace."""
    drawn: list[Act] = []

    @seeded(effort.seed(CAMPAIGN))
    @settings(max_examples=100, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(acts)
    def draw(act: Act) -> None:
        drawn.append(act)

    draw()
    return drawn


def goes_on(world: World) -> str:
    """The phase of a new key of the attacker's once it has run, or the sentence that says why it does not."""
    stage = world.both.attacker
    stage.send("new", "new")

    def look() -> str:
        status = stage.status("new")
        if status.get("phase") == "Succeeded":
            return "Succeeded"
        said = stage.condition("new", "Reserved")
        assert (said.get("status"), said.get("reason")) == ("Unknown", "StoreRewound"), f"{status}\n{stage.logs()}"
        message = str(said["message"])
        assert f"the status of {stage.namespace}/" in message
        assert "\n" not in message
        return message

    return assert_eventually(look, IN_TIME)
