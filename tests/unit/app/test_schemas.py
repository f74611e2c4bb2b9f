"""Contracts by name."""

from __future__ import annotations

import pytest

from simic.app.schemas import contract_names, schema_of
from simic.contracts.errors import ConfigError


def test_every_contract_has_a_schema_that_refuses_unknown_fields() -> None:
    names = contract_names()
    assert {"FieldReport", "PolicyUpdate", "EventEnvelope", "TelemetryPacket", "RunConfig", "GateDecision"} <= set(
        names
    )
    for name in names:
        assert schema_of(name)["additionalProperties"] is False, name


def test_spelling_is_forgiven_and_mistakes_are_answered_with_the_nearest_name() -> None:
    assert schema_of("field_report") == schema_of("FieldReport") == schema_of("field-report")
    with pytest.raises(ConfigError, match="FieldReport"):
        schema_of("FieldRaport")
