"""The cache of token reviews: what it keeps, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from sparkonce.commands.callers import POD_NAME, POD_UID, Caller
from sparkonce.gateway.tokens import KEPT, LONGEST, MOST, REFUSED, Tokens
from sparkonce.launch.kubernetes import ApiUnavailable


class Reviewed:
    """An API server that knows some tokens and counts its reviews."""

    def __init__(self) -> None:
        self.known: dict[str, Caller] = {}
        self.asked: list[str] = []
        self.answers = True

    async def caller(self, token: str) -> Caller | None:
        self.asked.append(token)
        if not self.answers:
            raise ApiUnavailable("no answer")
        return self.known.get(token)


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.server = Reviewed()
        self.told: list[str] = []
        self.tokens = Tokens(self.server, clock=lambda: self.now, on_answer=self.told.append)

    def caller(self, token: str) -> Caller | None:
        return asyncio.run(self.tokens.caller(token))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_accepted_token_is_asked_about_once_in_a_while(scene: Scene) -> None:
    """An accepted token is reviewed again only when the cached answer is old: a heartbeat costs no review until then."""
    scene.server.known["t"] = Caller(name="ann")
    for _ in range(3):
        assert scene.caller("t") == Caller(name="ann")
    assert scene.server.asked == ["t"]
    scene.now += KEPT
    assert scene.caller("t") is not None
    assert scene.server.asked == ["t", "t"]
    assert scene.told == ["accepted", "remembered", "remembered", "accepted"]


def test_a_refusal_is_forgotten_soon(scene: Scene) -> None:
    """A refusal is cached for a second at most: a token that becomes valid waits no longer."""
    assert scene.caller("t") is None
    scene.server.known["t"] = Caller(name="ann")
    assert scene.caller("t") is None
    scene.now += REFUSED
    assert scene.caller("t") is not None


def test_what_was_not_answered_is_not_remembered(scene: Scene) -> None:
    """A review without an answer is not cached: the next request asks again, and no old answer takes its place."""
    scene.server.known["t"] = Caller(name="ann")
    assert scene.caller("t") is not None
    scene.now += KEPT
    scene.server.answers = False
    for _ in range(2):
        with pytest.raises(ApiUnavailable):
            scene.caller("t")
    assert len(scene.server.asked) == 3
    scene.server.answers = True
    assert scene.caller("t") is not None


def test_a_token_is_remembered_with_its_signature(scene: Scene) -> None:
    """Of two JWTs that differ only in the signature, or in its last character, accepting one proves nothing about the other."""
    claims = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4iLCJleHAiOjE4OTM0NTYwMDB9"
    genuine, forged, near = f"{claims}.c2lnbmVk", f"{claims}.Zm9yZ2Vk", f"{claims}.c2lnbmVL"
    scene.server.known[genuine] = Caller(name="ann")
    assert scene.caller(genuine) == Caller(name="ann")
    for wrong in (forged, near, f"{claims}.", claims):
        assert scene.caller(wrong) is None, wrong
    assert scene.server.asked == [genuine, forged, near, f"{claims}.", claims]
    assert scene.caller(genuine) == Caller(name="ann")  # and the cached refusals do not affect the genuine token


def test_what_is_remembered_is_bounded_and_no_token(scene: Scene) -> None:
    """However many wrong tokens arrive, the cache stays within its bound; it keeps no token's text."""
    for number in range(MOST + 10):
        scene.caller(f"token-{number}")
    kept = scene.tokens._known
    assert len(kept) == MOST
    assert all(len(key) == 32 for key in kept)
    assert scene.caller("x" * (LONGEST + 1)) is None
    assert scene.caller("") is None
    assert len(scene.server.asked) == MOST + 10


@pytest.mark.parametrize(
    ("name", "extra", "bound"),
    [
        ("system:serviceaccount:ns:spark", {POD_NAME: ("p",), POD_UID: ("u",)}, True),
        ("system:serviceaccount:ns:spark", {POD_NAME: ("p",)}, False),
        ("system:serviceaccount:ns:spark", {POD_NAME: ("p", "q"), POD_UID: ("u",)}, False),
        ("system:serviceaccount:ns:spark", {}, False),
        ("ann", {POD_NAME: ("p",), POD_UID: ("u",)}, False),
    ],
)
def test_only_a_service_account_is_bound_to_a_pod(name: str, extra: dict[str, tuple[str, ...]], bound: bool) -> None:
    """Only the API server's own authenticator sets these fields, for service accounts; both must be present exactly once."""
    pod = Caller(name=name, extra=extra).pod
    assert (pod is not None) == bound
    if pod is not None:
        assert (pod.namespace, pod.name, pod.uid) == ("ns", "p", "u")
