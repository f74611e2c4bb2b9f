"""Fast validation of reports in canonical form with msgspec structs that are derived from the contract.

A struct has the contract's types and bounds, is decoded strictly, and runs the contract's own validators. The contract
accepts whatever it accepts, with the same values. It may refuse what the contract accepts (a number in quotes, a
missing field, a value above 1e15); the contract then validates that line. It has no defaults, because the canonical
form omits no field.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types as at
import msgspec
from pydantic import AfterValidator, AwareDatetime, BaseModel
from pydantic.fields import FieldInfo

from simic.contracts.actions import BlueprintName
from simic.contracts.base import DATE_TEXT, WHOLE
from simic.contracts.errors import ContractError

__all__ = ["nesting", "strict_struct_for"]

_LARGEST = 1e15
"""Above this value msgspec and pydantic write the same float differently (``1e16`` and ``1e+16``)."""
_PATTERN = re.compile(r"\^(.*)\$")
_ON_ONE_LINE = re.compile(r"[\w\[\]{},-]*")
"""Patterns without escapes, dots and negated sets, which cannot match a line end."""

_Check = Callable[[Any], None]
"""Raises ValueError for an invalid struct that was just decoded."""


@cache
def strict_struct_for(contract: type[BaseModel], known_blueprints: frozenset[str]) -> type[msgspec.Struct]:
    """Return the contract as a strict struct that accepts only these blueprints.

    Raises:
        ContractError: for an annotation that has no exact equivalent.
    """
    names = sorted(name for name in known_blueprints if _matches(BlueprintName, name))
    return _Builder(Literal[tuple(names)] if names else None).struct(contract)


@cache
def nesting(contract: type[BaseModel]) -> int:
    """Return the greatest nesting depth of objects and arrays in a value of this contract."""
    return 1 + max((_nesting(hint) for hint in _hints(contract).values()), default=0)


class _Builder:
    """Builds the struct of each contract once."""

    def __init__(self, blueprint: Any) -> None:
        self._blueprint = blueprint
        self._structs: dict[type[BaseModel], type[msgspec.Struct]] = {}

    def struct(self, contract: type[BaseModel]) -> type[msgspec.Struct]:
        if contract not in self._structs:
            hints = _hints(contract)
            texts = _texts(contract, hints)
            namespace: dict[str, Any] = {
                name: item
                for name, item in vars(contract).items()
                if inspect.isfunction(item) and not name.startswith("__")
            }
            if (check := _check(contract, hints, texts)) is not None:
                namespace["__post_init__"] = check
            types_of = {
                name: str if name in texts else self._type(hint, f"{contract.__name__}.{name}")
                for name, hint in hints.items()
            }
            self._structs[contract] = msgspec.defstruct(
                contract.__name__,
                types_of.items(),
                namespace=namespace,
                forbid_unknown_fields=True,
                frozen=True,
                gc=False,
            )
        return self._structs[contract]

    def _type(self, hint: Any, place: str) -> Any:
        if hint == BlueprintName:
            return self._blueprint
        if hint == AwareDatetime:
            return Annotated[datetime, msgspec.Meta(tz=True)]
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            limits = _limits(arguments[1:], place)
            if arguments[0] is float:
                return _bounded_float(limits)
            inner = self._type(arguments[0], place)
            if "pattern" in limits:  # to Python, "$" also matches before a line end at the end of the text
                limits["pattern"] = rf"\A(?:{limits['pattern']})\Z"
            return Annotated[inner, msgspec.Meta(**limits)] if limits else inner
        if origin in (Union, types.UnionType):
            return Union[tuple(self._type(member, place) for member in arguments)]  # noqa: UP007
        if origin is list:
            return list[self._type(arguments[0], place)]  # type: ignore[misc]
        if origin is tuple and Ellipsis not in arguments:
            return tuple[tuple(self._type(member, place) for member in arguments)]  # type: ignore[misc]
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            return self.struct(hint)
        if hint is float:
            return _bounded_float({})
        if origin is Literal or hint in (str, int, bool, type(None)) or _is_enum(hint):
            return hint
        raise ContractError(f"{place}: {hint} has no strict struct; add it to simic.ingestion.fast_validator")


def _bounded_float(limits: Mapping[str, Any]) -> Any:
    low = {} if "gt" in limits else {"ge": max(limits.get("ge", -_LARGEST), -_LARGEST)}
    high = {} if "lt" in limits else {"le": min(limits.get("le", _LARGEST), _LARGEST)}
    return Annotated[float, msgspec.Meta(**{**limits, **low, **high})]


def _hints(contract: type[BaseModel]) -> dict[str, Any]:
    hints = get_type_hints(contract, include_extras=True)
    return {name: hints[name] for name in contract.model_fields}


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, str) and issubclass(hint, Enum)


def _metadata(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _limits(items: Iterable[Any], place: str) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for item in _metadata(items):
        match item:
            case at.Ge():
                limits["ge"] = item.ge
            case at.Gt():
                limits["gt"] = item.gt
            case at.Le():
                limits["le"] = item.le
            case at.Lt():
                limits["lt"] = item.lt
            case at.MinLen():
                limits["min_length"] = item.min_length
            case at.MaxLen():
                limits["max_length"] = item.max_length
            case AfterValidator():
                pass
            case _ if item is WHOLE or item is DATE_TEXT:
                pass  # msgspec accepts nothing else here, unless the line is not in canonical form
            case _:
                limits |= _general(item, place)
    return limits


def _general(item: Any, place: str) -> dict[str, Any]:
    settings = getattr(item, "__dict__", {})
    if set(settings) == {"allow_inf_nan"}:
        return {}  # msgspec takes no other numbers
    if set(settings) == {"pattern"} and (inner := _PATTERN.fullmatch(settings["pattern"])):
        return {"pattern": inner.group(1)}
    raise ContractError(f"{place}: {item} has no strict struct; add it to simic.ingestion.fast_validator")


def _texts(contract: type[BaseModel], hints: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that are texts with only a pattern, if there are several; one search matches them all."""
    patterns = {}
    for name, hint in hints.items():
        if get_origin(hint) is Annotated and get_args(hint)[0] is str and hint != BlueprintName:
            limits = _limits(get_args(hint)[1:], f"{contract.__name__}.{name}")
            if set(limits) == {"pattern"} and _ON_ONE_LINE.fullmatch(limits["pattern"]):
                patterns[name] = limits["pattern"]
    return patterns if len(patterns) > 1 else {}


def _check(contract: type[BaseModel], hints: Mapping[str, Any], texts: Mapping[str, str]) -> _Check | None:
    """Return one function that runs the contract's validators and the patterns of ``texts``."""
    decorators = contract.__pydantic_decorators__
    if decorators.field_validators or any(item.info.mode != "after" for item in decorators.model_validators.values()):
        raise ContractError(f"{contract.__name__}: only model validators of mode after are supported")
    checks = [_text_check(texts)] if texts else []
    checks += [_field_check(name, function) for name, hint in hints.items() for function in _validators(hint)]
    checks += [item.func for item in decorators.model_validators.values()]

    def check(self: Any) -> None:
        for each in checks:
            each(self)

    return check if len(checks) > 1 else next(iter(checks), None)


def _text_check(patterns: Mapping[str, str]) -> _Check:
    read = attrgetter(*patterns)
    matches = re.compile("\n".join(f"(?:{pattern})" for pattern in patterns.values())).fullmatch

    def check(self: Any) -> None:
        # A line end within a text cannot match, because no pattern accepts one.
        if matches("\n".join(read(self))) is None:
            raise ValueError(f"{list(patterns)} do not match their patterns")

    return check


def _field_check(name: str, function: Callable[[Any], Any]) -> _Check:
    read = attrgetter(name)

    def check(self: Any) -> None:
        value = read(self)
        if value is not None and function(value) is not value:
            raise ValueError(f"{name} is not in canonical form")

    return check


def _validators(hint: Any) -> Iterator[Callable[[Any], Any]]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _validators(arguments[0])
        for item in _metadata(arguments[1:]):
            if isinstance(item, AfterValidator):
                function: Any = item.func
                yield function
    elif origin in (Union, types.UnionType):
        for member in arguments:
            yield from _validators(member)


def _matches(annotation: Any, name: str) -> bool:
    pattern = _limits(get_args(annotation)[1:], "BlueprintName")["pattern"]
    return re.fullmatch(pattern, name) is not None


def _nesting(hint: Any) -> int:
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return nesting(hint)
    if origin is Annotated:
        return _nesting(arguments[0])
    if origin in (list, tuple):
        return 1 + max(map(_nesting, arguments))
    return max(map(_nesting, arguments), default=0) if origin in (Union, types.UnionType) else 0
