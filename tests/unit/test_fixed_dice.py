"""What a test draws depends on the test and the fixed seed only, not on what happened in the process before."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import effort


def drawn() -> list[list[int]]:
    lists: list[list[int]] = []

    @given(st.lists(st.integers()))
    def draw(numbers: list[int]) -> None:
        lists.append(numbers)

    draw()
    return lists


def test_hypothesis_draws_the_same_whatever_is_imported(tmp_path: Path) -> None:
    """Draws are the same before and after a module with many constants was imported."""
    first = drawn()
    source = tmp_path / "constants.py"
    source.write_text("".join(f"C{n} = {1_000_003 * n}\n" for n in range(7, 500)))
    spec = importlib.util.spec_from_file_location("sparkonce_test_constants", source)
    assert spec is not None and spec.loader is not None
    with pytest.MonkeyPatch.context() as patch:
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        assert drawn() == first


def test_a_campaign_has_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed is the same in each run and differs between campaigns; `SEED` changes it."""
    monkeypatch.delenv("SEED", raising=False)
    assert effort.seed("kills 0") == effort.seed("kills 0") == 3536802381
    assert effort.seed("kills 1") != effort.seed("kills 0")
    monkeypatch.setenv("SEED", "another")
    assert effort.seed("kills 0") != 3536802381
