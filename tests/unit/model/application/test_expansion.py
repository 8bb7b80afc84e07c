"""`$(NAME)` as a kubelet expands it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.manifests import job, template
from sparkonce.model.application.expansion import expand, expands, garbled
from sparkonce.model.entrance import check_template
from sparkonce.model.validation import InvalidJob

VALUES = {"VAR_A": "A", "VAR_B": "B", "VAR_C": "C", "VAR_REF": "$(VAR_A)", "VAR_EMPTY": "", "BLANK": " "}


@pytest.mark.parametrize(
    ("given", "expanded"),
    [
        ("$(VAR_A)", "A"),
        ("___$(VAR_B)___", "___B___"),
        ("$(VAR_A)$(VAR_B)", "AB"),
        ("$(VAR_A)-1", "A-1"),
        ("foo$(VAR_EMPTY)bar", "foobar"),
        ("$(VAR_REF)", "$(VAR_A)"),
        ("%%$(VAR_REF)--$(VAR_REF)%%", "%%$(VAR_A)--$(VAR_A)%%"),
        ("$(NOPE)", "$(NOPE)"),
        ("$(NOPE) $(VAR_A)", "$(NOPE) A"),
        ("$$5", "$5"),
        ("$$(VAR_A)", "$(VAR_A)"),
        ("$$$(VAR_A)", "$A"),
        ("$$$$(VAR_A)", "$$(VAR_A)"),
        ("$$$$$$(VAR_A)", "$$$(VAR_A)"),
        ("foo$$(foo)bar", "foo$(foo)bar"),
        ("$VAR_A", "$VAR_A"),
        ("$VAR_A$(VAR_A)", "$VAR_AA"),
        ("${VAR_A}", "${VAR_A}"),
        ("$(VAR_A", "$(VAR_A"),
        ("$(VAR_A$$", "$(VAR_A$"),
        ("$()", "$()"),
        ("$( VAR_A)", "$( VAR_A)"),
        ("$(VAR_$(VAR_A)", "$(VAR_$(VAR_A)"),
        ("a$", "a$"),
        ("$", "$"),
        ("$?5$", "$?5$"),
        ("--$(VAR_A)\n$(VAR_B)", "--A\nB"),
        ("Zürich $(VAR_A) 東京", "Zürich A 東京"),
    ],
)
def test_each_rule_of_kubernetes(given: str, expanded: str) -> None:
    """The cases of Kubernetes' own expansion: references, escapes, and what it leaves alone."""
    assert expand(given, VALUES.get) == expanded


@given(st.text(alphabet="a$()Vü \n", max_size=12))
def test_an_escaped_text_arrives_as_it_is(text: str) -> None:
    """Any text can be passed by doubling each `$`; a text without references is unchanged."""
    assert expand(text.replace("$", "$$"), VALUES.get) == text
    if not expands(text):
        assert expand(text, VALUES.get) == text


@pytest.mark.parametrize("text", ["$é", "a$é", "$$$é", "Preis $€5"])
def test_a_dollar_before_a_letter_beyond_ascii_is_refused(text: str) -> None:
    """A kubelet would write other bytes in its place; the sentence names the field and the text to write."""
    with pytest.raises(
        InvalidJob, match=r"spec\.template\.spec\.arguments\[1\]: has '\$' before .; ?|passes as other bytes"
    ):
        check_template(job({template("arguments", 1): text}))
    assert [loc for loc, _ in garbled({"driver": {"env": [{"name": "A", "value": text}]}})] == [
        ("driver", "env", 0, "value")
    ]


@pytest.mark.parametrize("text", ["$$é", "$$$$é", "é$", "$(A)é", "$aé"])
def test_what_a_kubelet_passes_is_not_refused(text: str) -> None:
    """An escaped dollar, or a letter beyond ASCII anywhere else, passes."""
    check_template(job({template("arguments", 1): text}))
