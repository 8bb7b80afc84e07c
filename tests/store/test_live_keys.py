"""When the live keys of a realm are counted: seldom while there is room, and for each new key near the limit."""

from __future__ import annotations

import pytest

from sparkonce.store.live_keys import LiveKeys


class Realm:
    """A realm of a ledger, whose counts are counted."""

    def __init__(self, live: int) -> None:
        self.live, self.counts, self.seconds = live, 0, 0.0
        self.keys = LiveKeys(monotonic=lambda: self.seconds)

    def count(self) -> int:
        self.counts += 1
        return self.live

    def reserve(self, times: int = 1, *, limit: int = 100_000) -> bool:
        """Whether the last of so many new keys was refused."""
        full = False
        for _ in range(times):
            full = self.keys.full("realm", limit, self.count)
            self.live += not full
        return full


def test_with_room_a_count_serves_for_a_while() -> None:
    """A hundred new keys need one count; ten seconds later they need another, also where others have added keys."""
    realm = Realm(live=60_000)
    assert (realm.reserve(100), realm.counts) == (False, 1)
    assert realm.keys.most == 60_100
    realm.seconds, realm.live = 11.0, 70_000
    assert (realm.reserve(100), realm.counts) == (False, 2)
    assert realm.keys.most == 70_100


@pytest.mark.parametrize("limit", [2, 100, 100_000])
def test_near_the_limit_each_key_is_counted(limit: int) -> None:
    """The last one that fits is admitted and the next one refused, whoever added keys; room that becomes free is seen at once."""
    realm = Realm(live=limit - 2)
    assert [realm.reserve(limit=limit) for _ in range(3)] == [False, False, True]
    assert realm.counts == 3
    realm.live -= 1
    assert [realm.reserve(limit=limit) for _ in range(2)] == [False, True]


def test_a_count_does_not_serve_up_to_the_limit() -> None:
    """Keys of this process are added to it, so that it is taken anew before four fifths of the limit are passed."""
    realm = Realm(live=79_990)
    assert (realm.reserve(30), realm.counts) == (False, 21)
