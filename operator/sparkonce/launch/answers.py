"""Maps answers of the API server to launch errors.

Only 400 and 422 mean that an application is invalid; every other refusal (unauthorized, forbidden, a quota, too many requests, a missing
namespace) is temporary, and a missing answer proves nothing. No call is retried here: the caller's loop does that, after it has read the
state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparkonce.errors import LaunchRefused, LaunchUnavailable
from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable

SENTENCE = 500
"""Maximum characters quoted from the API server's message."""
NAMED = 8
"""Unknown fields that one message names; the others show once these are corrected."""
_TEMPLATE = "spec.template."


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Turns refusals and missing answers into LaunchUnavailable, with the API server's Retry-After. what: begins the message, for example
    "application x cannot be read"."""
    try:
        yield
    except ApiUnavailable as silent:
        raise LaunchUnavailable(f"{what}: the API server did not answer ({short(silent)}); ask again") from silent
    except ApiRefused as refused:
        raise not_now(what, refused) from refused


def not_now(what: str, refused: ApiRefused) -> LaunchUnavailable:
    return LaunchUnavailable(f"{what}: {short(refused)}", retry_after=refused.retry_after)


def invalid(what: str, refused: ApiRefused) -> LaunchRefused:
    """The error for an invalid application, with field paths as in the IdempotentJob."""
    if refused.unknown:
        *others, last = (_of_the_job(path)[:SENTENCE] for path in refused.unknown[:NAMED])
        named = f"{', '.join(others)} and {last} are not fields" if others else f"{last} is not a field"
        return LaunchRefused(f"{what}: {named} of the SparkApplications of this cluster; correct or remove the name")
    fields = [_of_the_job(path) for path in refused.fields]
    where = f" ({', '.join(fields)})" if fields else ""
    return LaunchRefused(f"{what} as invalid{where}: {short(refused)}")


def _of_the_job(path: str) -> str:
    return _TEMPLATE + path if path.startswith("spec.") else path


def short(problem: Exception) -> str:
    text = str(problem)
    return text if len(text) <= SENTENCE else text[: SENTENCE - 3] + "..."
