"""Sealed intents are untrusted input: what a driver sealed is validated before it is used."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import delta_tables, iceberg_tables
from harness.arrow_stage import table_of
from harness.forged import file_of, forgeries
from harness.granted import Granted, granted
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput
from sparkonce.model.record import Intent, SpecBody, Verdict
from sparkonce.model.spec import WriteMode
from sparkonce.sink.protocol import GROUPED_SCHEMA, REPLACING_SCHEMA, SinkKey, Slot
from sparkonce.sink.sealed import FOLDERS, OutputRule, outputs_of, sealed_slots
from sparkonce.sink.series import NO_COLUMNS
from sparkonce.sink.transaction import intent_of, settle
from sparkonce.store.open import open_store

KEY_HASH, FINGERPRINT = "a" * 64, "f" * 64
KEY = SinkKey(key_hash=KEY_HASH, output="orders", generation=1)


def parsed(intent: Intent, kind: str = "slotLog") -> dict[str, Slot]:
    return sealed_slots(
        intent, key_hash=KEY_HASH, generation=1, fingerprint=FINGERPRINT, outputs={"orders": OutputRule(kind)}
    )


def folder_of(kind: str) -> str:
    return f"{FOLDERS[kind]}{KEY}/0000000001-n1"


def sound(kind: str = "slotLog") -> dict[str, Any]:
    slot = Slot(
        state="committed",  # type: ignore[arg-type]  # as JSON has it
        sink_key=str(KEY),
        token=1,
        nonce="n1",
        fingerprint=FINGERPRINT,
        rows=1,
        data_schema='{"type":"struct","fields":[]}',
    )
    return {**slot.dump(), "files": [file_of(folder_of(kind))]}


FORGERIES = forgeries(sound(), folder_of("slotLog"))


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_sound_intent_is_read_as_it_was_sealed(kind: str) -> None:
    """Each kind accepts its own folders; a parsed intent dumps to the same JSON, so that a roll-forward writes the same bytes."""
    intent = Intent(token=1, slots={"orders": sound(kind)})
    slots = parsed(intent, kind)
    assert {name: slot.dump() for name, slot in slots.items()} == intent.slots


@pytest.mark.parametrize(
    ("name", "sound_"), [("north", True), ("_x4E", True), ("_s" + "0" * 64, True), ("_xZZ", False), ("_xFF", False)]
)
def test_names_of_partitions_stand_for_values(name: str, sound_: bool) -> None:
    """A commit reads partition values from folder names; a name that encodes no value is refused with its path."""
    file = file_of(f"{folder_of('delta')}/so-group-day={name}")
    slot = {**sound("delta"), "files": [file], "schema": GROUPED_SCHEMA, "partitionBy": ["day"]}
    if sound_:
        assert parsed(Intent(token=1, slots={"orders": slot}), "delta")["orders"].files[0].path == file["path"]
        return
    with pytest.raises(
        InvalidInput, match=r"^the transaction's slots\.orders\.files\.0\.path: .* does not name a partition's value$"
    ):
        parsed(Intent(token=1, slots={"orders": slot}), "delta")


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_slot_is_refused_by_field(name: str) -> None:
    """The sentence names the field, is short, and contains no control characters from the driver."""
    with pytest.raises(InvalidInput, match=r"^the transaction's slots\.orders") as refused:
        parsed(Intent(token=1, slots={"orders": FORGERIES[name]}))
    text = str(refused.value)
    assert len(text) < 600
    assert text.isprintable()


@pytest.mark.parametrize(
    ("intent", "says"),
    [
        (Intent(token=0, slots={"orders": sound()}), "token: 0"),
        (Intent(token=1, slots={}), "names no output"),
        (Intent(token=1, slots={"other": sound()}), "other is not an output of the job, which declares orders"),
        (Intent(token=2, slots={"orders": sound()}), r"orders\.token: it is 1 and must be 2"),
    ],
)
def test_a_forged_intent_is_refused(intent: Intent, says: str) -> None:
    """An intent with an invalid token or another attempt's, without outputs, or with an undeclared output is refused."""
    with pytest.raises(InvalidInput, match=says):
        parsed(intent)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(sound())) | st.text(), _JSON, max_size=4))
def test_any_slot_is_refused_or_can_be_written(change: dict[str, Any]) -> None:
    """Whatever its fields contain, a slot either raises InvalidInput or is a slot of this key and token whose JSON can be written and
    read."""
    try:
        slots = parsed(Intent(token=1, slots={"orders": {**sound(), **change}}))
    except InvalidInput:
        return
    [slot] = slots.values()
    assert (slot.sink_key, slot.token) == (str(KEY), 1)
    assert all(file.path.startswith(folder_of("slotLog")) for file in slot.files)
    assert Slot.model_validate_json(json.dumps(slot.dump())).dump() == slot.dump()


def test_what_sinks_stage_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The validation accepts the folders that slot logs, Delta and Iceberg tables really write to."""
    for name, value in iceberg_tables.sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    attempt = granted(tmp_path / "slots", "orders")
    key = attempt.key("orders").model_copy(update={"output": "orders"})
    staged = {
        "slotLog": attempt.sinks()["orders"].stage(table_of(1, 2), key, 1, fingerprint=FINGERPRINT),
        "delta": delta_tables.staged(delta_tables.sink_on(tmp_path / "delta"), key, 1, 1, 2, fingerprint=FINGERPRINT),
        "iceberg": iceberg_tables.staged(iceberg_tables.opened(), key, 1, 1, 2, fingerprint=FINGERPRINT),
    }
    for kind, slot in staged.items():
        sealed = intent_of(1, {"orders": slot})
        found = sealed_slots(
            sealed,
            key_hash=key.key_hash,
            generation=key.generation,
            fingerprint=FINGERPRINT,
            outputs={"orders": OutputRule(kind)},
        )
        assert found == {"orders": slot}, kind


@pytest.mark.parametrize(
    ("kind", "declared", "mode", "allowed"),
    [
        ("delta", None, "Overwrite", True),
        ("iceberg", WriteMode.OVERWRITE_PARTITIONS, "OverwritePartitions", True),
        ("delta", WriteMode.APPEND, "Overwrite", False),
        ("delta", WriteMode.OVERWRITE, None, False),
        ("delta", WriteMode.OVERWRITE_PARTITIONS, "Overwrite", False),
        ("slotLog", None, "Overwrite", False),
        ("delta", None, "Append", False),
    ],
)
def test_a_sealed_slot_replaces_only_what_the_output_declares(
    kind: str, declared: WriteMode | None, mode: str | None, allowed: bool
) -> None:
    """A driver that seals an overwrite of an output that appends would have the operator empty the table with its credentials."""
    slot = sound(kind) | ({"mode": mode, "schema": REPLACING_SCHEMA} if mode else {})
    intent = Intent(token=1, slots={"orders": slot})

    def accepted() -> dict[str, Slot]:
        outputs = {"orders": OutputRule(kind, declared)}
        return sealed_slots(intent, key_hash=KEY_HASH, generation=1, fingerprint=FINGERPRINT, outputs=outputs)

    if allowed:
        assert accepted()["orders"].mode == mode
    else:
        with pytest.raises(InvalidInput, match=r"slots\.orders\.mode: "):
            accepted()


@pytest.mark.parametrize(
    ("mode", "schema"), [("Overwrite", 1), ("Overwrite", GROUPED_SCHEMA), (None, REPLACING_SCHEMA)]
)
def test_a_sealed_mode_needs_its_schema(mode: str | None, schema: int) -> None:
    """A release that does not know modes refuses schema 5, and would append the rows of a slot with another schema."""
    slot = {**sound("delta"), "schema": schema, **({"mode": mode} if mode else {})}
    with pytest.raises(InvalidInput, match=r"slots\.orders\.schema: "):
        parsed(Intent(token=1, slots={"orders": slot}), "delta")


@pytest.mark.parametrize("kind", ["slotLog", "delta"])
def test_a_sealed_slot_does_not_say_what_it_replaces(kind: str) -> None:
    """A driver could hide any rows of other jobs by it: what an overwrite replaces is decided where it is committed."""
    slot = {**sound(kind), "replaces": {"order": 1, "slots": ["_idem/other-orders-g1/0000000001.json"]}}
    with pytest.raises(InvalidInput, match=r"slots\.orders\.replaces: "):
        parsed(Intent(token=1, slots={"orders": slot}), kind)


@pytest.mark.parametrize("position", ["2024-05-01", "", "9" * 16, "tomorrow", "\uff11"])
def test_a_sealed_place_has_a_position_that_a_job_could_have(position: str) -> None:
    """A table stores it as a number of 15 digits."""
    place = {"series": "daily", "position": position, "allowLate": False}
    intent = Intent(token=1, slots={"orders": {**sound("delta"), "schema": REPLACING_SCHEMA, "place": place}})
    if position == "2024-05-01":
        assert parsed(intent, "delta")["orders"].dump() == intent.slots["orders"]
        return
    with pytest.raises(InvalidInput, match=r"slots\.orders\.place: "):
        parsed(intent, "delta")


SKIPPED: dict[str, Any] = {
    "schema": REPLACING_SCHEMA,
    "place": {"series": "daily", "position": "5", "allowLate": False, "skipLate": True},
    "skipped": "6",
    "onRerun": "Append",
    "files": [],
    "rows": 0,
    "dataSchema": NO_COLUMNS,
}


def test_a_skipped_slot_may_be_sealed_for_an_output_of_any_mode() -> None:
    """It was late before its rows ran, in a transaction with others; its bytes stay the same."""
    slot = {**sound("delta"), **SKIPPED}
    for mode in (None, *WriteMode):
        sealed = sealed_slots(
            Intent(token=1, slots={"orders": slot}),
            key_hash=KEY_HASH,
            generation=1,
            fingerprint=FINGERPRINT,
            outputs={"orders": OutputRule("delta", mode)},
        )
        assert sealed["orders"].dump() == slot


@pytest.mark.parametrize(
    "change",
    [
        {"skipped": "5"},
        {"skipped": "tomorrow"},
        {"skipped": "9" * 16},
        {"place": {"series": "daily", "position": "5", "allowLate": False}},
        {"place": {"series": "daily", "position": "5", "allowLate": True, "skipLate": True}},
        {"onRerun": "Replace"},
        {"mode": "Overwrite"},
        {name: sound("delta")[name] for name in ("files", "rows")},
    ],
    ids=["in time", "no position", "too long", "fails", "is allowed", "replaces a run", "overwrites", "has files"],
)
def test_a_slot_that_only_claims_to_be_skipped_is_refused(change: dict[str, Any]) -> None:
    """The operator would commit it without the compare with the series, or with rows."""
    intent = Intent(token=1, slots={"orders": {**sound("delta"), **SKIPPED, **change}})
    with pytest.raises(InvalidInput, match=r"slots\.orders\.skipped: "):
        parsed(intent, "delta")


def test_the_outputs_of_a_spec_are_read_without_trusting_it() -> None:
    """Another release may have recorded the spec: entries that are not valid outputs are left out."""
    for spec, expected in (
        (
            {"outputs": [{"name": "a", "delta": {}, "mode": "Overwrite"}, {"name": 1}, "x", {"name": "b", "mode": []}]},
            {"a": OutputRule("delta", WriteMode.OVERWRITE), "b": OutputRule("")},
        ),
        ({"outputs": {"name": "a"}}, {}),
        ([], {}),
    ):
        assert outputs_of(SpecBody(job={"spec": spec})) == expected


@pytest.fixture
def attempt(tmp_path: Path) -> Granted:
    return granted(tmp_path, "a", "b", store=open_store(str(tmp_path / "ledger.db")))


@pytest.mark.parametrize("name", ["a token that closes two billion slots", "a file above the table", "no nonce"])
def test_a_forged_intent_in_the_ledger_is_stuck_at_once(attempt: Granted, name: str) -> None:
    """An intent that an earlier release sealed without validation: the attempt is settled as Stuck within a second, with the field, and no
    output is touched."""
    record = attempt.record
    folder = f"_data/{attempt.key('a')}/0000000001-n1"
    good = {**sound(), "sinkKey": str(attempt.key("a")), "fingerprint": record.fingerprint, "files": [file_of(folder)]}
    forged = Intent(token=1, slots={"a": forgeries(good, folder)[name]})
    began = time.monotonic()
    settlement = run(
        settle(
            list(attempt.sinks().values()),
            key_hash=record.key_hash,
            generation=record.generation,
            attempt=1,
            fingerprint=record.fingerprint,
            intent=forged,
            by="settle",
        )
    )
    assert time.monotonic() - began < 1.0
    assert (settlement.verdict, dict(settlement.slots)) == (Verdict.STUCK, {})
    assert settlement.note.startswith("the transaction's slots.a.")
    assert attempt.slots("a") == attempt.slots("b") == []
    assert len(settlement.note) < 400
