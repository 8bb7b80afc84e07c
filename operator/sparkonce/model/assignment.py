"""What one attempt is told: all that a driver knows of the ledger.

It travels as one JSON text in the driver's environment (`SPARKONCE_ASSIGNMENT`), so that no webhook and no file has to carry it.
It holds no credentials: the attempt's nonce proves only that the holder was told by whoever was granted the attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkonce.model.record import Address, Intent, SpecBody, Value, Why

ENVIRONMENT = "SPARKONCE_ASSIGNMENT"
FOLDER_ENVIRONMENT = "SPARKONCE_ATTEMPT_FOLDER"
"""Local mode: the attempt's folder, whose lock the driver takes."""
NONCE_ENVIRONMENT = "SPARKONCE_NONCE"
"""The attempt's nonce once more, alone: who stops an attempt knows its processes by it."""


@dataclass(frozen=True)
class GatewayAddress:
    """Where drivers in pods reach the ledger."""

    url: str
    """https://HOST:PORT"""
    ca: str = ""
    """PEM text, or the path of such a file inside the job's image; empty: the image's own authorities."""


class Assignment(Value):
    install: str
    realm: str
    key_hash: str
    key: str
    generation: int
    attempt: int
    nonce: str
    fingerprint: str
    spec: SpecBody
    store: str = ""
    """Store URL for the direct control channel; empty where drivers use the gateway."""
    gateway: str = ""
    """URL of the gateway; where it is set the store's is not."""
    gateway_ca: str = ""
    """As in `GatewayAddress`."""
    settle: Intent | None = None
    """Only for settle runs: the sealed intent to roll forward."""
    run: int | None = None
    """Only for settle runs: its number within the attempt."""
    why: Why | None = None
    """Only for settle runs: why the attempt ends. Cancelled and Superseded: what a stream has committed by then is its result."""

    @property
    def address(self) -> Address:
        return Address(realm=self.realm, key_hash=self.key_hash)

    @property
    def namespace(self) -> str:
        """Of the job's object, whose pods are in the same."""
        metadata = self.spec.job.get("metadata")
        return str((metadata.get("namespace") if isinstance(metadata, dict) else None) or "default")

    @property
    def name(self) -> str:
        return application_name(self.address, self.generation, self.attempt)

    @property
    def settle_run_name(self) -> str:
        assert self.run is not None  # only asked of a settle run
        return f"{self.name}-s{self.run}"


def application_name(address: Address, generation: int, attempt: int) -> str:
    """DNS label of at most 40 characters; one per attempt, never used again."""
    return f"so-{address.hash20}-g{generation}-a{attempt}"
