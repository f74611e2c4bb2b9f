"""Where things are kept, and which recipe a run follows."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simic.contracts.config import RunConfig
from simic.contracts.errors import ConfigError
from simic.contracts.lake_url import parse_url

__all__ = ["HOME_VARIABLE", "LAKE_VARIABLE", "Home", "config_digest", "load_profile", "profile_names", "resolve_home"]

HOME_VARIABLE = "SIMIC_HOME"
LAKE_VARIABLE = "SIMIC_LAKE_URL"
"""Where landed parts lie, if not in the home."""


@dataclass(frozen=True)
class Home:
    """The one directory that holds everything a run writes; ``root`` is absolute."""

    root: Path
    lake_url: str | None = None
    """The store of landed parts that was asked for; null means ``experience``, or what the ledger says."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.absolute())

    @property
    def data(self) -> Path:
        """Experience, snapshots, policies and their ledgers."""
        return self.root / "data"

    @property
    def spool(self) -> Path:
        """The embedded bus."""
        return self.data / "spool"

    @property
    def experience(self) -> Path:
        """Landed Parquet parts."""
        return self.data / "experience"

    @property
    def ids(self) -> Path:
        """Ids of reports that were dropped or lie elsewhere; one told again is recognised by them."""
        return self.data / "ids"

    @property
    def ledger(self) -> Path:
        """Append-only ledgers: the only truth about what is committed."""
        return self.data / "ledger"

    @property
    def quarantine(self) -> Path:
        """Reports refused, with the reason."""
        return self.data / "quarantine"

    @property
    def snapshots(self) -> Path:
        """Immutable training sets, by digest."""
        return self.data / "snapshots"

    @property
    def policies(self) -> Path:
        """Sealed policies, by digest."""
        return self.data / "policies"

    @property
    def receipts(self) -> Path:
        """What the stages returned."""
        return self.data / "receipts"

    @property
    def runs(self) -> Path:
        """Curves, figures and trials of each run."""
        return self.data / "runs"

    @property
    def outbox(self) -> Path:
        """Policy updates on their way to the bus."""
        return self.data / "outbox"

    @property
    def locks(self) -> Path:
        """Lock files."""
        return self.data / ".locks"

    @property
    def tmp(self) -> Path:
        """Unfinished files, on the file system they will be renamed within."""
        return self.data / "tmp"

    @property
    def keys(self) -> Path:
        """The signing key of this home and the public keys it trusts."""
        return self.data / "keys"

    @property
    def catalogue(self) -> Path:
        """DuckDB views over everything; can be rebuilt at any time."""
        return self.data / "catalogue.duckdb"

    @property
    def mlruns(self) -> Path:
        """MLflow."""
        return self.root / "mlruns"

    @property
    def tracking_uri(self) -> str:
        """MLflow's database."""
        return f"sqlite:///{self.mlruns / 'mlflow.db'}"

    @property
    def artifacts(self) -> Path:
        """MLflow's artifacts."""
        return self.mlruns / "artifacts"

    @property
    def prefect(self) -> Path:
        """Prefect's database, results and profiles."""
        return self.root / ".prefect"

    def create(self) -> None:
        """Make every directory that is missing; the one with the private key is for its owner only."""
        for path in (
            self.spool, self.experience, self.ledger, self.quarantine, self.snapshots, self.policies,
            self.receipts, self.runs, self.outbox, self.locks, self.tmp, self.artifacts, self.prefect,
        ):  # fmt: skip
            path.mkdir(parents=True, exist_ok=True)
        self.keys.mkdir(mode=0o700, parents=True, exist_ok=True)


def resolve_home() -> Home:
    """``SIMIC_HOME``, or the checkout the current directory lies in, or the current directory.

    Raises ConfigError where ``SIMIC_LAKE_URL`` is no address of a lake.
    """
    named, lake_url = os.environ.get(HOME_VARIABLE), _lake_url()
    if named:
        return Home(Path(named).expanduser(), lake_url)
    here = Path.cwd()
    return Home(next((path for path in (here, *here.parents) if _is_checkout(path)), here), lake_url)


def _lake_url() -> str | None:
    url = os.environ.get(LAKE_VARIABLE) or None
    try:
        if url is not None:
            parse_url(url)
    except ConfigError as error:
        raise ConfigError(f"{LAKE_VARIABLE}: {error}") from None
    return url


def _is_checkout(path: Path) -> bool:
    project = path / "pyproject.toml"
    if not project.is_file():
        return False
    try:
        return bool(tomllib.loads(project.read_text("utf-8")).get("project", {}).get("name") == "simic")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError):
        return False  # somebody else's project on the way up is none of our business


def config_digest(config: BaseModel) -> str:
    """SHA-256 of the canonical JSON (sorted keys, no spaces) of the resolved configuration."""
    data = json.dumps(
        config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(data.encode()).hexdigest()


def profile_names() -> tuple[str, ...]:
    """The recipes that ship with Simic."""
    return tuple(sorted(path.name.removesuffix(".toml") for path in _profiles().iterdir() if _is_toml(path.name)))


def load_profile(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """The complete recipe: defaults, then the profile, then the overrides.

    ``name_or_path`` is a shipped profile's name, or a path that ends in ``.toml``. Keys of ``overrides`` are
    nested tables or dotted names (``{"train.policy_lr": 1e-4}``). An unknown key, a wrong value or an
    unknown profile raises ConfigError that names it.
    """
    settings = _read_profile(name_or_path)
    for key, value in (overrides or {}).items():
        _merge(settings, _nested(key, value))
    _refuse_unknown(settings, name_or_path)
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        problems = "; ".join(_explain(detail) for detail in error.errors())
        raise ConfigError(f"profile {name_or_path}: {problems}") from error


def _profiles() -> Any:
    return files("simic.runtime") / "profiles"


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")


def _read_profile(name_or_path: str) -> dict[str, Any]:
    if _is_toml(name_or_path):
        source: Any = Path(name_or_path)
        if not source.is_file():
            raise ConfigError(f"profile {name_or_path}: there is no such file")
    else:
        known = profile_names()
        if name_or_path not in known:
            hint = _nearest(name_or_path, known)
            raise ConfigError(
                f"{name_or_path} is not a profile; {f'did you mean {hint}; ' if hint else ''}"
                f"shipped are {', '.join(known)}; the path of another must end in .toml"
            )
        source = _profiles() / f"{name_or_path}.toml"
    try:
        return tomllib.loads(source.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"profile {name_or_path}: not valid TOML: {error}") from error


def _nested(key: str, value: Any) -> dict[str, Any]:
    """``a.b.c`` as tables within tables."""
    head, _, rest = key.partition(".")
    return {head: _nested(rest, value) if rest else value}


def _merge(into: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _refuse_unknown(settings: Mapping[str, Any], profile: str) -> None:
    known = tuple(_settings_of(RunConfig, ""))
    for name in _names_in(settings, [RunConfig], ""):
        if name not in known:
            nearest = _nearest(name, known)
            table = name.rpartition(".")[0]
            siblings = [other for other in known if other.rpartition(".")[0] == table] or list(RunConfig.model_fields)
            hint = f"did you mean {nearest}?" if nearest else f"known are {', '.join(siblings)}"
            raise ConfigError(f"profile {profile}: {name} is not a setting; {hint}")


def _settings_of(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Dotted names of all fields, tables included."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for table in _tables(field.annotation):
            yield from _settings_of(table, f"{prefix}{name}.")


def _names_in(settings: Mapping[str, Any], models: Sequence[type[BaseModel]], prefix: str) -> Iterator[str]:
    """Dotted names in use; an unknown table counts by what stands in it, which says more than its own name."""
    for name, value in settings.items():
        fields = [model.model_fields[name] for model in models if name in model.model_fields]
        tables = [table for field in fields for table in _tables(field.annotation)]
        if isinstance(value, Mapping) and value and (tables or not fields):
            yield from _names_in(value, tables, f"{prefix}{name}.")
        else:
            yield prefix + name


def _tables(annotation: Any) -> list[type[BaseModel]]:
    """The contracts a setting may hold: none, one, or those of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for member in get_args(annotation) for table in _tables(member)]


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """The closest known name: by the whole dotted name, else by its last part alone."""
    if matches := get_close_matches(name, known, n=1, cutoff=0.75):
        return matches[0]
    last = {other.rpartition(".")[2]: other for other in known}
    matches = get_close_matches(name.rpartition(".")[2], list(last), n=1, cutoff=0.75)
    return last[matches[0]] if matches else None


def _explain(detail: ErrorDetails) -> str:
    name = ".".join(str(part) for part in detail["loc"]) or "the recipe"
    if detail["type"] == "value_error":  # a check across fields, whose message says what it found
        return f"{name}: {detail['ctx']['error']}"
    return f"{name}: {detail['msg'][0].lower()}{detail['msg'][1:]}, found {detail['input']!r}"
