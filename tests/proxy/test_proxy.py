"""`sparkonce proxy` as a process before a service that knows nothing of keys: effects are counted in the service's file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from harness.child import Child
from harness.patience import stretched
from harness.reply_proxy import STARTS, counting_service, serves, started_proxy
from sparkonce.proxy.iceberg import catalog_policy


@dataclass
class Place:
    """A service, and proxies before it that share one ledger."""

    folder: Path
    service: Child
    port: int

    @property
    def effects(self) -> int:
        file = self.folder / "effects"
        return len(file.read_text().splitlines()) if file.exists() else 0

    @contextmanager
    def proxy(self, *options: str, failpoints: str = "") -> Iterator[str]:
        """A proxy's URL."""
        advertised, upstream = "/lifetime", f"http://127.0.0.1:{self.port}"
        given = ("--advertise", advertised, *options)
        with started_proxy(self.folder, upstream, *given, shows=advertised, failpoints=failpoints) as (url, _):
            yield url


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with counting_service(tmp_path) as (port, service):
        yield Place(tmp_path, service, port)


def post(
    url: str, key: str | None = "k1", *, query: str = "", body: bytes = b"order", **headers: str
) -> httpx.Response:
    keyed = {} if key is None else {"Idempotency-Key": key}
    return httpx.post(f"{url}/orders{query}", content=body, headers=keyed | headers, timeout=60.0)


def test_a_repetition_gets_the_first_answer_at_any_proxy(place: Place) -> None:
    """One effect; headers of the service's connection stay there; what has no key passes, in both directions."""
    with place.proxy() as one, place.proxy() as other:
        first, second, third = post(one), post(one), post(other)
        assert (first.status_code, first.text, second.text, third.text) == (201, "1", "1", "1")
        assert "idempotency-replayed" not in first.headers
        assert second.headers["idempotency-replayed"] == third.headers["idempotency-replayed"] == "true"
        assert "x-private" not in first.headers
        assert first.headers["x-seen-host"] == f"127.0.0.1:{place.port}"
        assert place.effects == 1
        assert [post(one, None).text for _ in range(2)] == ["2", "3"]
        assert httpx.get(f"{one}/orders").text == "3"
        large = post(one, None, query="?size=3000000", body=b"x" * 2_000_000)
        assert len(large.content) == 3_000_000


def test_an_encoded_slash_is_another_path(place: Place) -> None:
    """`/files/a%2Fb` and `/files/a/b` are two resources to the service: the second request with the key is refused, and not given the
    answer of the first."""
    with place.proxy() as proxy:
        answers = [
            httpx.post(f"{proxy}/files/{name}", content=b"x", headers={"Idempotency-Key": "k1"}, timeout=60.0)
            for name in ("a%2Fb", "a/b", "a%2Fb")
        ]
    assert [each.status_code for each in answers] == [201, 422, 201]
    assert answers[1].json()["title"] == "key-reused"
    assert answers[2].headers["idempotency-replayed"] == "true"
    assert place.effects == 1


def test_services_that_share_a_ledger_have_keys_of_their_own(place: Place) -> None:
    """`--service`: the same key is another one behind a proxy with another name, and the same one behind the same name."""
    with place.proxy("--service", "orders") as one, place.proxy("--service", "bills") as other:
        assert [post(proxy).text for proxy in (one, other, one, other)] == ["1", "2", "1", "2"]
    assert place.effects == 2
    assert catalog_policy(service="lake").service == "lake"


def test_64_clients_of_two_proxies_have_one_effect(place: Place) -> None:
    """The answers of all agree."""
    with place.proxy() as one, place.proxy() as other, ThreadPoolExecutor(64) as clients:
        answers = list(clients.map(lambda number: post((one, other)[number % 2], query="?slow=0.3"), range(64)))
    assert {(each.status_code, each.text) for each in answers} == {(201, "1")}
    assert place.effects == 1


@pytest.mark.parametrize("what", ["?break=1", "?status=500", "?status=503"])
def test_an_unknown_outcome_is_never_sent_again(place: Place, what: str) -> None:
    """The effect landed, its answer did not, or said nothing of it: 503 from then on."""
    with place.proxy() as proxy:
        first = post(proxy, query=what)
        assert first.status_code == {"?break=1": 502, "?status=500": 500, "?status=503": 503}[what]
        for _ in range(2):
            late = post(proxy, query=what)
            assert (late.status_code, late.json()["title"]) == (503, "unknown-outcome")
    assert place.effects == 1


def test_a_silent_service_is_given_up(place: Place) -> None:
    """504 after the time-out, and the outcome is unknown."""
    with place.proxy("--timeout", "0.5") as proxy:
        began = time.monotonic()
        assert post(proxy, query="?silent=1").status_code == 504
        assert time.monotonic() - began < stretched(5)
        assert post(proxy, query="?silent=1").json()["title"] == "unknown-outcome"
    assert place.effects == 1


def test_rerun_sends_an_unknown_outcome_again(place: Place) -> None:
    """`--rerun`: for services that are idempotent by themselves."""
    with place.proxy("--rerun") as proxy:
        assert post(proxy, query="?break=1").status_code == 502
        assert post(proxy, query="?break=1").status_code == 502
    assert place.effects == 2


def test_a_service_that_cannot_be_reached_frees_the_key(place: Place) -> None:
    """Nothing was sent: 503 with Retry-After, with a key and without one, and the request runs when the service is back."""
    place.service.kill()
    with place.proxy() as proxy:
        for key in ("k1", None):
            down = post(proxy, key)
            assert (down.status_code, down.json()["title"], down.headers["retry-after"]) == (503, "upstream-down", "1")
        place.service.start()
        place.service.until(lambda: serves(f"http://127.0.0.1:{place.port}"), STARTS)
        assert post(proxy).text == "1"
        assert post(proxy).headers["idempotency-replayed"] == "true"
    assert place.effects == 1


@pytest.mark.parametrize(
    ("point", "title"),
    [
        ("replies.reserved", "unknown-outcome"),
        ("replies.effect.after", "unknown-outcome"),
        ("replies.finalize.after", None),
    ],
)
def test_a_proxy_that_dies_doubles_nothing(place: Place, point: str, title: str | None) -> None:
    """Killed before it sent the request, after the answer came, and after it was recorded: the next one answers without a second effect."""
    with place.proxy(failpoints=f"{point}=kill") as proxy, pytest.raises(httpx.TransportError):
        post(proxy)
    with place.proxy() as proxy:
        late = post(proxy)
    if title is None:
        assert (late.text, late.headers["idempotency-replayed"]) == ("1", "true")
    else:
        assert (late.status_code, late.json()["title"]) == (503, title)
    assert place.effects == (0 if point == "replies.reserved" else 1)


def test_required_keys_and_other_methods(place: Place) -> None:
    """`--required`, `--methods` and `--lifetime` are the middleware's."""
    with place.proxy("--required", "--methods", "post, put", "--lifetime", "0.5") as proxy:
        assert post(proxy, None).json()["title"] == "key-missing"
        assert httpx.get(f"{proxy}/lifetime").json() == {"idempotency-key-lifetime": "PT30M"}
    assert place.effects == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--upstream", "ftp://x", "--store", "memory:"], "--upstream is 'ftp://x'; give http(s)://HOST[:PORT][/PATH]"),
        (["--upstream", "orders:3000", "--store", "memory:"], "--upstream is 'orders:3000'; give http(s)://HOST"),
        (
            ["--upstream", "http://x:99999", "--store", "memory:"],
            "--upstream has a host or a port that is none; give http(s)://HOST",
        ),
        (
            ["--upstream", "http://a\tb", "--store", "memory:"],
            "--upstream has a host or a port that is none; give http(s)://HOST",
        ),
        (["--upstream", "http://a b", "--store", "memory:"], "--upstream has a host or a port that is none"),
        (["--upstream", "http://x:0", "--store", "memory:"], "--upstream has a host or a port that is none"),
        (["--upstream", "http://ann:hunter2@x", "--store", "memory:"], "--upstream has a user, a query or a fragment"),
        (["--upstream", "ann:hunter2@x", "--store", "memory:"], "--upstream has a user, a query or a fragment"),
        (["--upstream", "http://@x", "--store", "memory:"], "--upstream has a user, a query or a fragment"),
        (["--upstream", "http://x/api?", "--store", "memory:"], "--upstream has a user, a query or a fragment"),
        (["--upstream", "http://x", "--store", "redis://:hunter2@x"], "is no ledger of answers"),
        (["--upstream", "http://x", "--store", "memory:", "--listen", "8080"], "--listen is '8080'; give HOST:PORT"),
        (["--upstream", "http://x", "--store", "memory:", "--profile", "hive"], "the only profile is iceberg"),
        (
            ["--upstream", "http://x", "--store", "memory:", "--profile", "iceberg", "--rerun"],
            "--profile iceberg decides which requests take keys",
        ),
    ],
)
def test_a_bad_option_is_one_sentence(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and no password."""
    from sparkonce.cli.app import main

    assert main(["proxy", *options]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert "hunter2" not in printed
