"""What an answer of the API server means to whoever starts and stops applications.

Only a 400 or 422 says that an application is wrong; every other no (unauthorized, forbidden, a quota, too many requests, a namespace
that is not there) is about now, and no answer is about nothing. Nothing here repeats a call: the caller's loop does, after looking.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparkonce.errors import LaunchRefused, LaunchUnavailable
from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable

SENTENCE = 500
"""Characters of the API server's own sentence that go into ours."""
_TEMPLATE = "spec.template."


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Whatever the API server does not do is LaunchUnavailable, with the time after which it wants to be asked again. `what` begins
    the sentence: "application x cannot be read"."""
    try:
        yield
    except ApiUnavailable as silent:
        raise LaunchUnavailable(f"{what}: the API server did not answer ({short(silent)}); ask again") from silent
    except ApiRefused as refused:
        raise not_now(what, refused) from refused


def not_now(what: str, refused: ApiRefused) -> LaunchUnavailable:
    return LaunchUnavailable(f"{what}: {short(refused)}", retry_after=refused.retry_after)


def invalid(what: str, refused: ApiRefused) -> LaunchRefused:
    """With the fields as the IdempotentJob has them."""
    fields = [_TEMPLATE + path if path.startswith("spec.") else path for path in refused.fields]
    where = f" ({', '.join(fields)})" if fields else ""
    return LaunchRefused(f"{what} as invalid{where}: {short(refused)}")


def short(problem: Exception) -> str:
    text = str(problem)
    return text if len(text) <= SENTENCE else text[: SENTENCE - 3] + "..."
