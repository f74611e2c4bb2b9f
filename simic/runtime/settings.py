"""The resolved configuration of a run: a profile, with the overrides of a command."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simic.contracts.base import contracts_in
from simic.contracts.errors import ConfigError
from simic.contracts.settings.run import RunConfig
from simic.contracts.settings.training import WITHOUT_EFFECT
from simic.runtime.nearest_name import FIELD_LIKENESS, nearest

__all__ = ["config_digest", "load_profile", "profile_names"]


def config_digest(config: BaseModel) -> str:
    """Return the SHA-256 of the canonical JSON (sorted keys, no spaces) of the resolved configuration.

    Settings without effect on results are left out: the limits of a training and of stages, so that a higher one
    resumes a run, whether trials land, so that landing begins no other judgement, and telemetry.
    """
    values = config.model_dump(
        mode="json", exclude={"train": dict(WITHOUT_EFFECT), "trial": {"land"}, "stages": True, "telemetry": True}
    )
    data = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(data.encode()).hexdigest()


def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles that ship with Simic."""
    return tuple(sorted(path.name.removesuffix(".toml") for path in _profiles().iterdir() if _is_toml(path.name)))


def load_profile(
    name_or_path: str, overrides: Mapping[str, Any] | None = None, flags: Mapping[str, str] | None = None
) -> RunConfig:
    """Return the complete configuration: defaults, then the profile, then the overrides.

    ``name_or_path`` is a shipped profile's name, or a path that ends in ``.toml``. Keys of ``overrides`` are
    nested tables or dotted names (``{"train.policy_lr": 1e-4}``). An unknown key, a wrong value or an
    unknown profile raises ConfigError that names it and its origin: the profile, ``--override``, or the command-line
    option that ``flags`` gives for an override.
    """
    origins = _Origins(name_or_path, tuple(overrides or ()), flags or {})
    settings = _read_profile(name_or_path)
    for key, value in (overrides or {}).items():
        _merge(settings, _nested(key, value))
    _refuse_unknown(settings, origins)
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(detail, origins) for detail in error.errors())) from error


def _profiles() -> Any:
    return files("simic.runtime") / "profiles"


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")


def _read_profile(name_or_path: str) -> dict[str, Any]:
    if _is_toml(name_or_path):
        source: Any = Path(name_or_path)
        if not source.is_file():
            raise ConfigError(
                f"--profile: expected a TOML file, found none at {name_or_path}; "
                f"shipped profiles: {', '.join(profile_names())}"
            )
    else:
        known = profile_names()
        if name_or_path not in known:
            hint = nearest(name_or_path, known, FIELD_LIKENESS)
            raise ConfigError(
                f"{name_or_path} is not a profile; {f'did you mean {hint}; ' if hint else ''}"
                f"shipped are {', '.join(known)}; a profile of your own is a path that ends in .toml"
            )
        source = _profiles() / f"{name_or_path}.toml"
    try:
        return tomllib.loads(source.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"profile {name_or_path}: not valid TOML: {error}") from error


def _nested(key: str, value: Any) -> dict[str, Any]:
    """Return dotted names such as ``a.b.c`` as nested tables."""
    head, _, rest = key.partition(".")
    return {head: _nested(rest, value) if rest else value}


def _merge(into: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class _Origins:
    """Where the values of settings come from: the profile, ``--override``, or an option of its own."""

    profile: str
    overridden: tuple[str, ...]
    flags: Mapping[str, str]

    def of(self, name: str) -> str:
        """Return ``profile quick``, ``--override`` or the option that gave the setting ``name``."""
        for given in self.overridden:
            if f"{name}.".startswith(f"{given}."):
                return self.flags.get(given, "--override")
        return f"profile {self.profile}"

    def labelled(self, name: str) -> str:
        """Return the origin and the setting; an option of its own stands for its setting."""
        match self.of(name):
            case "--override":
                return f"--override {name}"
            case str(origin) if origin.startswith("--"):
                return origin
            case origin:
                return f"{origin}: {name}"


def _refuse_unknown(settings: Mapping[str, Any], origins: _Origins) -> None:
    known = tuple(_settings_of(RunConfig, ""))
    for name in _names_in(settings, [RunConfig], ""):
        if name not in known:
            raise ConfigError(f"{origins.of(name)}: {_unknown(name, known)}")


_CRITERIA_HINT = "; a criterion is left out by its name, as in -o 'gate.without=[\"return_over\"]' (docs/trust.md)"


def _unknown(name: str, known: Sequence[str]) -> str:
    if nearest := _nearest_setting(name, known):
        return f"{name} is not a setting; did you mean {nearest}?"
    section, _, last = name.rpartition(".")
    if section in known:
        siblings = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == section]
        hint = _CRITERIA_HINT if section == "gate" else ""
        return f"section {section} has no setting {last!r}; its settings: {', '.join(siblings)}{hint}"
    missing = section or last
    return f"section {missing!r} does not exist; sections: {', '.join(RunConfig.model_fields)}"


def _settings_of(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Return the dotted names of all fields, including tables."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for table in contracts_in(field.annotation):
            yield from _settings_of(table, f"{prefix}{name}.")


def _names_in(settings: Mapping[str, Any], models: Sequence[type[BaseModel]], prefix: str) -> Iterator[str]:
    """Return the dotted names in use; an unknown table is represented by its content."""
    for name, value in settings.items():
        fields = [model.model_fields[name] for model in models if name in model.model_fields]
        tables = [table for field in fields for table in contracts_in(field.annotation)]
        if isinstance(value, Mapping) and value and (tables or not fields):
            yield from _names_in(value, tables, f"{prefix}{name}.")
        else:
            yield prefix + name


def _nearest_setting(name: str, known: Sequence[str]) -> str | None:
    """Return the closest setting of the same section, or the setting of another one with exactly that last name.

    The names of an unknown section are compared as a whole. A shared section would make unlike names look alike.
    """
    section, _, last = name.rpartition(".")
    if section in known:
        siblings = [other for other in known if other.rpartition(".")[0] == section]
        if near := nearest(last, [other.rpartition(".")[2] for other in siblings], FIELD_LIKENESS):
            return f"{section}.{near}"
    elif near := nearest(name, known, FIELD_LIKENESS):
        return near
    return next((other for other in known if other.rpartition(".")[2] == last), None)


def _explain(detail: ErrorDetails, origins: _Origins) -> str:
    name = _setting_at(detail["loc"]) or "the recipe"
    if detail["type"] == "value_error":  # a check across several fields, whose message names what it found
        return f"{origins.labelled(name)}: {detail['ctx']['error']}"
    if detail["type"] == "union_tag_invalid":
        name = f"{name}.{detail['ctx']['discriminator'].strip(chr(39))}"
        return f"{origins.labelled(name)}: {_choice(detail['ctx']['expected_tags'])}, found {detail['ctx']['tag']!r}"
    if detail["type"] == "extra_forbidden":  # a setting of another reward family
        *section, last = map(str, detail["loc"])
        return f"{origins.of(name)}: {'.'.join(section)} has no setting {last!r}"
    if detail["type"] in ("model_type", "model_attributes_type"):
        origin = origins.of(name)
        write = f"-o {name}.KEY=VALUE" if origin == "--override" else f"a table [{name}]"
        return f"{origin}: {name} is a section, not a setting; write {write}"
    return f"{origins.labelled(name)}: {_expectation(detail['msg'])}, found {detail['input']!r}"


def _setting_at(place: Sequence[int | str]) -> str:
    """Return the dotted name of a setting, without the family that pydantic inserts for a union of contracts."""
    known, name = frozenset(_settings_of(RunConfig, "")), ""
    for part in place:
        longer = f"{name}.{part}" if name else str(part)
        if longer in known or name not in known or not any(other.startswith(f"{name}.") for other in known):
            name = longer
    return name


def _choice(tags: str) -> str:
    """Return ``expected a, b or c`` for pydantic's list of quoted tags."""
    *others, last = tags.replace("'", "").split(", ")
    return f"expected {', '.join(others)} or {last}" if others else f"expected {last}"


_NAMED = {"a valid number": "a number", "a valid integer": "a whole number", "a valid tuple": 'a list like ["a", "b"]'}
"""Pydantic's words for a kind of value, and those of the messages here."""


def _expectation(message: str) -> str:
    """Return a message of pydantic as an expectation: ``expected a number greater than 0``."""
    start, _, rest = message.partition("should be ")
    rest = _NAMED.get(rest.partition(",")[0], rest)
    if start != "Input ":
        return message[0].lower() + message[1:]
    return f"expected a number {rest}" if rest.startswith(("greater", "less", "a multiple")) else f"expected {rest}"
