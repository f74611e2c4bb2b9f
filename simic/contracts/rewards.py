"""Reward families: the rewards a learner can be shown for the same experience.

Trials, plan searches and collections always use ``basic`` points, so policies that learned from different families stay
comparable. The property ``basic`` of a family returns those prices.

A family is one file of ``simic/curation/sql/rewards``. Its header declares a summary and its constants other than the
shared prices::

    -- summary: what the family adds
    -- constant prune_cost = 0.2 in [0, 1000]: Points a prune costs.

A constant has a name, a default, bounds (round brackets exclude the bound) and a meaning with the unit.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BeforeValidator, Field, ValidationError, create_model

from simic.contracts.base import Contract
from simic.contracts.errors import ConfigError

__all__ = [
    "DEFAULT_FAMILY",
    "DEFAULT_FLAGS",
    "FAMILIES",
    "SETTING_LINE",
    "FlagConfig",
    "Reward",
    "RewardConfig",
    "declared_constants",
]

DEFAULT_FAMILY = "shaped"
"""Family used if a profile names none."""

SETTING_LINE = re.compile(r"^-- (summary|constant)\b(.*)(?:\n|\Z)", re.MULTILINE)
"""A line of a header that belongs to the settings and not to the SQL."""
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_CONSTANT = re.compile(rf" ([a-z][a-z_]*) = {_NUMBER} in ([\[(]){_NUMBER}, {_NUMBER}([\])]): (.+)")
_FILES = Path(__file__).parents[1] / "curation" / "sql" / "rewards"
_LISTED_FIRST = ("basic", "shaped", "sparse", "minimal")
"""Families that messages list first, in this order."""

Price = Annotated[float, Field(ge=0, le=1000)]


class FlagConfig(Contract):
    """Thresholds of the flags of a step, in snapshots and in trials; they change no reward."""

    hacking_ratio: Annotated[float, Field(ge=1.0, le=1e6)] = 5.0
    """A step is hacking if a seed contributes more than this many times what the host improved since its start."""
    ransom_contribution: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    """A step is ransomware if a seed contributes more than this share of validation samples, ..."""
    ransom_loss: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    """... although the validation accuracy of the host fell by more than this since its start."""


DEFAULT_FLAGS = FlagConfig()


class _Prices(Contract):
    """The four constants that all families share."""

    accuracy_scale: Annotated[float, Field(gt=0, le=10_000)] = 100.0
    """Points per unit of validation accuracy."""
    rent: Price = 3.0
    """Points that ``rent_parameters`` parameters cost over a whole episode."""
    rent_parameters: Annotated[int, Field(ge=1)] = 1640
    governor_penalty: Price = 10.0
    """Points that a panic costs."""

    if TYPE_CHECKING:  # each family has its own, after the prices in the order of fields
        family: str = ""

    @property
    def basic(self) -> RewardConfig:
        """Return the prices by which trials judge: those of this family without its additions."""
        return RewardConfig(**{name: getattr(self, name) for name in _Prices.model_fields})


class RewardConfig(_Prices):
    """Family ``basic``: progress minus rent, step by step."""

    family: Literal["basic"] = "basic"


class _Declared(_Prices, use_attribute_docstrings=False):
    """Base of the families whose constants their SQL declares; they have no docstrings that pydantic could look for."""


def declared_constants(sql: str, file: str) -> dict[str, Any]:
    """Return type and default of each constant that the header of a family declares, as ``create_model`` takes them.

    Raises:
        ConfigError: a line does not have the form, or its constant has the name of a shared price or of another one.
    """
    constants: dict[str, Any] = {}
    for header in (line for line in SETTING_LINE.finditer(sql) if line[1] == "constant"):
        if (match := _CONSTANT.fullmatch(header[2])) is None:
            number = sql.count("\n", 0, header.start()) + 1
            raise ConfigError(
                f"{file}: line {number}: expected `-- constant name = default in [low, high]: meaning`, found "
                f"`-- constant{header[2]}`; correct the line"
            )
        name, default, opening, low, high, closing, meaning = match.groups()
        if name in constants or name in _Prices.model_fields or name == "family":
            raise ConfigError(f"{file}: the constant {name!r} exists already; give it another name")
        bounds = {"ge" if opening == "[" else "gt": json.loads(low), "le" if closing == "]" else "lt": json.loads(high)}
        constants[name] = (Annotated[float, Field(description=meaning, **bounds)], float(default))
    return constants


def _read(file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: expected SQL in UTF-8, found {error}; restore or correct the file") from error


def _family(name: str) -> type[_Prices]:
    if name == "basic":
        return RewardConfig
    file = str(_FILES / f"{name}.sql")
    sql = _read(file)
    summaries = [text.removeprefix(":").strip() for kind, text in SETTING_LINE.findall(sql) if kind == "summary"]
    if len(summaries) != 1:
        raise ConfigError(f"{file}: expected one line `-- summary: text`, found {len(summaries)}")
    family: type[_Prices] = create_model(
        f"{name.title().replace('_', '')}Reward",
        __base__=_Declared,
        __module__=__name__,
        __doc__=f"Family ``{name}``: {summaries[0]}",
        family=(Literal[name], name),  # type: ignore[arg-type]
        **declared_constants(sql, file),
    )
    try:
        family.model_validate(family().model_dump())
    except ValidationError as error:
        raise ConfigError(f"{file}: a default is out of its bounds: {error}") from error
    return family


_NAMES = dict.fromkeys((*_LISTED_FIRST, *sorted(path.stem for path in _FILES.glob("*.sql"))))
FAMILIES: dict[str, type[_Prices]] = {name: _family(name) for name in _NAMES}
"""Every family that ``curate.reward.family`` may name."""
_CLASSES = {family.__name__: family for family in FAMILIES.values()}
globals().update(_CLASSES)  # pickle looks a class up by its name, and `simic schema` finds what is public
__all__ += sorted(set(_CLASSES) - {"RewardConfig"})


def _name_family(value: Any) -> Any:
    return {"family": DEFAULT_FAMILY, **value} if isinstance(value, dict) else value


if TYPE_CHECKING:
    Reward = _Prices
else:
    Reward = Annotated[
        Annotated[Union[tuple(FAMILIES.values())], Field(discriminator="family")],  # noqa: UP007 - of a tuple
        BeforeValidator(_name_family),
    ]
    """One family with its own constants; a constant of another family is refused."""
