"""Contracts by name."""

from __future__ import annotations

import pytest

from simic.catalogue.contract_schemas import contract_names, example_of, schema_of
from simic.contracts.consistency import find_contradiction
from simic.contracts.errors import ConfigError
from simic.contracts.field_report import FieldReport


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


def test_the_example_of_a_field_report_is_valid_and_in_agreement() -> None:
    example = example_of("field_report")
    report = FieldReport.model_validate(example)
    assert report.model_dump(mode="json") == example
    assert find_contradiction(report) is None


def test_contracts_without_an_example_are_named() -> None:
    with pytest.raises(ConfigError, match=r"GateDecision has no example; these have one: FieldReport"):
        example_of("GateDecision")
