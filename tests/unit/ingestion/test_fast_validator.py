"""The quick twin accepts only what the contract accepts, with the same values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BeforeValidator, Field, field_validator
from support.builders.reports import BLUEPRINTS, episode, episodes, line, plain
from support.faults.hostile_reports import Fate, hostile_lines
from support.homes.pipeline import NOW

from simic.bus.protocol import Line
from simic.contracts.base import Contract
from simic.contracts.errors import ContractError
from simic.contracts.field_report import FieldReport
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.fast_validator import nesting, strict_struct_for
from simic.ingestion.validate import Accepted, Refused, Validator
from simic.lake.quarantine import Reason

KNOWN = frozenset(BLUEPRINTS)
VALIDATOR = Validator(IngestConfig(), KNOWN)
VALIDATOR.begin(NOW, NOW)


class Quick(Validator):
    """The quick way alone."""

    def validate_with_contract(self, line: Line) -> Accepted | Refused:
        return Refused(Reason.CONTRACT, "not quick", None)


QUICK = Quick(IngestConfig(), KNOWN)
QUICK.begin(NOW, NOW)
REPORTS = [*episodes(range(3)), *episode(5, governor_at=3), *episode(6, truncate_at=4)]
SCRIPTED = episode(
    9,
    script={0: "GERMINATE", 1: "PRUNE", 2: "GERMINATE", 3: "ADVANCE", 4: "SET_ALPHA_TARGET", 5: "FOSSILIZE"},
)


def is_taken(data: bytes) -> bool:
    """By the twin, as a line in normal form."""
    return isinstance(QUICK.validate(Line(1, data, None)), Accepted)


def assert_alike(data: bytes) -> None:
    """Quick or not, the same verdict, reason, digest and normal form; and never an exception.

    What the contract refuses the twin refuses, and what the contract takes the twin takes in normal form; but for
    floats beyond 1e15, which it leaves to the contract.
    """
    judged = VALIDATOR.validate_with_contract(Line(1, data, None))
    assert VALIDATOR.validate(Line(1, data, None)) == judged
    assert not is_taken(data) or isinstance(judged, Accepted)
    if isinstance(judged, Accepted) and not re.search(rb"e\+?[1-9]|[0-9]{16}", judged.data):
        assert is_taken(judged.data)


@pytest.mark.parametrize("report", [*REPORTS, *SCRIPTED], ids=lambda report: f"{report.run_id[:4]}-{report.step}")
def test_whatever_our_producers_write_is_taken(report: FieldReport) -> None:
    """Else the quick way would be there and never be gone."""
    assert is_taken(line(report))
    assert_alike(line(report))


def test_hostile_lines_are_judged_alike() -> None:
    for each in hostile_lines(3000, seed=3):
        assert_alike(each.data)
        assert not (each.fate is Fate.REFUSE and is_taken(each.data))


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.floats(-1e17, 1e17),
    st.sampled_from([0, 1, 3, 5, 8, 0.0, 1.0, 0.5, 0.7, -0.0, 1e15, 1e16, 2**53, 2**53 + 1, 10_000_000, 100_000]),
    st.text(max_size=4),
    st.sampled_from(
        ["mlp", "novel", "WAIT", "DORMANT", "op", "a" * 32, "a" * 32 + "\n", "0" * 64, "x" * 65, "\u0663" * 32]
    ),
    st.lists(st.integers(0, 5), max_size=3),
    st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=3),
    st.lists(st.booleans(), max_size=7),
    st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=2),
)


def places(item: Any) -> list[tuple[Any, Any]]:
    """Every holder and key of a JSON document."""
    keys = list(item) if isinstance(item, dict) else list(range(len(item))) if isinstance(item, list) else []
    return [place for key in keys for place in ((item, key), *places(item[key]))]


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_any_value_anywhere_is_judged_alike(data: st.DataObject) -> None:
    raw = plain(data.draw(st.sampled_from([*REPORTS[::3], REPORTS[-1], *SCRIPTED])))
    for _ in range(data.draw(st.integers(1, 2))):
        holder, key = data.draw(st.sampled_from(places(raw)))
        holder[key] = data.draw(odd)
    assert_alike(json.dumps(raw, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_bytes_anywhere_are_judged_alike(data: st.DataObject) -> None:
    whole = line(data.draw(st.sampled_from(REPORTS)))
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, min(len(whole), start + 3)))
    pieces = [b"0", b"-", b"1.0", b"e5", b" ", b"null", b"\\u0041", b'"', b"Z", b"+00:00", b"\x00", b"\xff", b"}", b"]"]
    filling = data.draw(st.sampled_from(pieces) | st.binary(max_size=3))
    assert_alike((whole[:start] + filling + whole[stop:]).replace(b"\n", b" "))


SPELLINGS: dict[str, Callable[[bytes], bytes]] = {
    "a field told twice": lambda data: data.replace(b'"step":2', b'"step":7,"step":2'),
    "the last of two counts": lambda data: data.replace(b'"step":2', b'"step":2,"step":"x"'),
    "a number in quotes": lambda data: data.replace(b'"step":2', b'"step":"2"'),
    "a whole float": lambda data: data.replace(b'"step":2', b'"step":2.0'),
    "a number for a truth": lambda data: data.replace(b'"terminated":false', b'"terminated":0'),
    "a default left out": lambda data: data.replace(b',"final_state":null', b""),
    "another order": lambda data: json.dumps(dict(reversed(json.loads(data).items()))).encode(),
    "spaces": lambda data: data.replace(b",", b", "),
    "an escaped letter": lambda data: data.replace(b'"cpu"', b'"\\u0063pu"'),
    "another zone": lambda data: data.replace(b"T12:00:02Z", b"T14:00:02+02:00"),
    "a zone named zero": lambda data: data.replace(b"T12:00:02Z", b"T12:00:02+00:00"),
    "fractions of a second": lambda data: data.replace(b"T12:00:02Z", b"T12:00:02.000Z"),
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_other_spellings_are_judged_by_the_contract(spell: Callable[[bytes], bytes]) -> None:
    data = line(REPORTS[2])
    spelt = spell(data)
    assert spelt != data and not is_taken(spelt)
    assert_alike(spelt)


@pytest.mark.parametrize("place", ["report_id", "run_id", "command_id", "controller", "host.set", "host.family"])
def test_a_line_end_after_a_name_is_no_part_of_it(place: str) -> None:
    """To Python's ``$`` it would be."""
    data = line(REPORTS[2])
    holder, _, key = place.rpartition(".")
    value = (plain(REPORTS[2])[holder] if holder else plain(REPORTS[2]))[key]
    spoilt = data.replace(
        b'"%s":"%s"' % (key.encode(), value.encode()), b'"%s":"%s\\n"' % (key.encode(), value.encode())
    )
    assert spoilt != data and not is_taken(spoilt)
    assert_alike(spoilt)


def test_names_searched_together_stay_apart() -> None:
    class Names(Contract):
        first: Annotated[str, Field(pattern="^[a-z]*$")]
        second: Annotated[str, Field(pattern="^[a-z]*$")]
        third: Annotated[str, Field(pattern="^[^x]*$")]

    decode = msgspec.json.Decoder(strict_struct_for(Names, KNOWN)).decode
    for texts in (("a", "b", "c"), ("", "", ""), ("a", "b", "c\nd")):
        assert decode(json.dumps(dict(zip(("first", "second", "third"), texts, strict=True))))
    for texts in (("a\nb", "", ""), ("", "\na", ""), ("a\n", "b", ""), ("a", "B", ""), ("", "", "x")):
        with pytest.raises(msgspec.ValidationError):
            decode(json.dumps(dict(zip(("first", "second", "third"), texts, strict=True))))


def test_large_floats_have_one_normal_form() -> None:
    """msgspec would write 1e16 where pydantic writes 1e+16: two digests for one report."""
    raw = plain(REPORTS[2])
    for value in (1e15, math.nextafter(1e15, math.inf), 1e16, 1.5e300):
        raw["state"]["graph"]["layers"][0]["weight_norm"] = value
        data = line(FieldReport.model_validate(raw))
        assert_alike(data)
        assert_alike(data.replace(b"e+", b"e"))
        assert is_taken(data) is (value <= 1e15)


WRONG = ["true", "false", '"VALUE"', "[VALUE]", '""', "{}"]
INTEGERS = [*WRONG, "VALUE.0", "VALUEe0", "VALUE.0E+0", "-0.0", "1e2", "2.5", "0x2", "02", "+2"]
FLOATS = [*WRONG, '"NaN"', "NaN", "Infinity", "1e999", ".5", "5."]
TRUTHS = ['"VALUE"', "[VALUE]", '""', "{}", "0", "1", "0.0", '"no"', "null"]


@pytest.mark.parametrize(
    ("field", "spelling"),
    [
        *(
            (field, spelling)
            for field in ("step", "threads", "schema_version", "rent_parameters")
            for spelling in INTEGERS
        ),
        *((field, spelling) for field in ("validation_loss", "alpha", "op_log_prob") for spelling in FLOATS),
        *((field, spelling) for field in ("terminated", "is_linear") for spelling in TRUTHS),
    ],
)
def test_strict_means_strict_for_both_readers(field: str, spelling: str) -> None:
    """D6: no truth value, text or point where a whole number stands, and no number where a truth value does."""
    data = line(REPORTS[5])
    name = {"op_log_prob": b'behaviour":{"op":'}.get(field, b'"%s":' % field.encode())
    start = data.index(name) + len(name)
    stop = min(found for end in b",}" if (found := data.find(end, start)) > 0)
    spelt = data[:start] + spelling.replace("VALUE", data[start:stop].decode()).encode() + data[stop:]
    assert not is_taken(spelt)
    result = VALIDATOR.validate(Line(1, spelt, None))
    assert isinstance(result, Refused)
    assert result.reason in (Reason.CONTRACT, Reason.MALFORMED_JSON, Reason.NON_FINITE, Reason.SCHEMA_VERSION)


def test_a_whole_number_may_stand_where_a_fraction_can() -> None:
    """JSON has one kind of number; its normal form says 0.0."""
    data = line(REPORTS[0])
    for spelt in (b"0", b"-0", b"0e5", b"0.00"):
        result = VALIDATOR.validate(Line(1, data.replace(b'"alpha":0.0', b'"alpha":' + spelt, 1), None))
        assert isinstance(result, Accepted)
    assert VALIDATOR.validate(Line(1, data.replace(b'"alpha":0.0', b'"alpha":0', 1), None)).data == data  # type: ignore[union-attr]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_field_given_twice_at_any_depth_is_refused_whichever_is_right(data: st.DataObject) -> None:
    """To a reader that takes the first value it would be another report than to one that takes the last."""
    raw = plain(data.draw(st.sampled_from([*REPORTS[::3], REPORTS[-1], *SCRIPTED])))
    holder, key = data.draw(st.sampled_from([place for place in places(raw) if isinstance(place[0], dict)]))
    mark, is_right_last = "\u241f", data.draw(st.booleans())
    other = data.draw(st.sampled_from([holder[key], None, 0, "x", [], {}]))
    pairs = [(mark, other), *holder.items()] if is_right_last else [*holder.items(), (mark, other)]
    holder.clear()
    holder.update(pairs)
    name = f"\\u{ord(key[0]):04x}{key[1:]}" if data.draw(st.booleans()) else key
    spelt = json.dumps(raw, separators=(",", ":"), ensure_ascii=False).replace(mark, name).encode()
    assert_alike(spelt)
    result = VALIDATOR.validate(Line(1, spelt, None))
    assert isinstance(result, Refused)
    assert result.reason is Reason.DUPLICATE_KEY or not is_right_last


@pytest.mark.parametrize("value", ["2", "9" * 5000, "[" * 9 + "]" * 9, '"x"'])
def test_a_value_that_a_later_one_hides_is_never_taken(value: str) -> None:
    spelt = line(REPORTS[2]).replace(b'"step":2', b'"step":%s,"step":2' % value.encode())
    result = VALIDATOR.validate(Line(1, spelt, None))
    assert isinstance(result, Refused) and result.report_id == REPORTS[2].report_id
    if value != "9" * 5000:
        assert (result.reason, result.message) == (
            Reason.DUPLICATE_KEY,
            "step: expected once in an object, found 2 times",
        )


def test_no_blueprint_known_means_only_reports_without() -> None:
    validator = Validator(IngestConfig(), frozenset())
    raw = plain(REPORTS[1])
    raw["available"]["blueprint"] = []
    assert isinstance(validator.validate(Line(1, line(FieldReport.model_validate(raw)), None)), Accepted)
    assert not isinstance(validator.validate(Line(1, line(REPORTS[1]), None)), Accepted)
    assert isinstance(
        Validator(IngestConfig(), KNOWN | {"Not a name"}).validate(Line(1, line(REPORTS[1]), None)), Accepted
    )


def test_depth_of_the_contract_is_known_and_a_lower_limit_still_holds() -> None:
    assert nesting(FieldReport) == 5
    strict = Validator(IngestConfig(max_depth=4), KNOWN)
    assert not isinstance(strict.validate(Line(1, line(REPORTS[1]), None)), Accepted)


def test_every_list_and_text_of_a_report_is_bounded() -> None:
    """So the size of a report is bounded by its contract, whatever ``max_report_bytes`` allows."""
    unbounded: list[str] = []
    _walk(FieldReport.model_json_schema(), FieldReport.model_json_schema()["$defs"], "report", unbounded)
    assert unbounded == []


def _walk(node: Any, definitions: Any, place: str, unbounded: list[str]) -> None:
    if isinstance(node, list):
        for item in node:
            _walk(item, definitions, place, unbounded)
        return
    if not isinstance(node, dict):
        return
    if "$ref" in node:
        _walk(definitions[node["$ref"].rpartition("/")[2]], definitions, place, unbounded)
    if node.get("type") == "array" and "maxItems" not in node:
        unbounded.append(place)
    is_free = not {"maxLength", "pattern", "enum", "const", "format"} & set(node)
    if node.get("type") == "string" and is_free:
        unbounded.append(place)
    for key in ("anyOf", "items", "prefixItems"):
        _walk(node.get(key), definitions, place, unbounded)
    for name, child in node.get("properties", {}).items():
        _walk(child, definitions, f"{place}.{name}", unbounded)


def test_what_the_twin_cannot_repeat_exactly_it_refuses_to_be() -> None:
    class Shouting(Contract):
        text: Annotated[str, BeforeValidator(str.upper)]

    class Loose(Contract):
        text: Annotated[str, Field(pattern="[a-z]")]

    class Odd(Contract):
        thing: set[int]

    class Checking(Contract):
        text: str

        @field_validator("text")
        @classmethod
        def _check(cls, text: str) -> str:
            return text

    for contract in (Shouting, Loose, Odd, Checking):
        with pytest.raises(ContractError, match=contract.__name__):
            strict_struct_for(contract, KNOWN)


def test_a_line_in_normal_form_never_troubles_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    validator = Validator(IngestConfig(), KNOWN)
    monkeypatch.setattr(validator, "validate_with_contract", lambda _: pytest.fail("judged by the contract"))
    assert isinstance(validator.validate(Line(1, line(REPORTS[2]), None)), Accepted)
