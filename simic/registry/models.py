"""The registered versions of one MLflow model: search, create, tag and fetch."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.names import CHAMPION, KARN, MODEL_NAME, REFERENCE_PREFIX
from simic.registry.mlflow_store import default_store
from simic.registry.pyfunc_files import sealed_files, write_model

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

__all__ = ["Models", "Registered", "Shown"]

_PAGE = 1_000
_ALIASES = (
    "that the gate judged, accepted or not. The alias `champion` is on the version in production, `staged` on the "
    "accepted one that waits to be promoted, `candidate` on the newest one."
)
_DESCRIPTIONS = {
    MODEL_NAME: f"Growth controllers {_ALIASES}",
    KARN: f"Proposers of blueprints, which growth controllers may consult, {_ALIASES}",
}
_REFERENCE = re.compile(r"models:/(?P<name>[a-z][a-z0-9_-]{0,63})(?:@(?P<alias>[a-z]+)|/(?P<number>[1-9]\d{0,8}))")

_PROMOTED = "promoted_at"
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""Error codes of MLflow for a missing model, version or alias; a missing alias is an invalid parameter."""

T = TypeVar("T")

_ERRNO = re.compile(r"\[Errno (\d+)\]")
_MACHINE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS, errno.EMFILE, errno.ENFILE})
"""Errors of the disk, of permissions or of limits, which say nothing about the stored files."""


class Registered(NamedTuple):
    """One version as MLflow shows it; anybody may have edited its tags."""

    name: str
    number: int
    run_id: str
    aliases: list[str]
    tags: Mapping[str, str]


class Shown(NamedTuple):
    """Aliases and versions of one model as MLflow shows them: all versions, or those that were asked for."""

    model: str
    versions: Mapping[int, Registered]
    """By number, in order."""
    aliases: Mapping[str, int]

    def version(self, number: int) -> Registered:
        """Return a version that a ledger or an alias names; raise IntegrityError if MLflow lacks it."""
        if number not in self.versions:
            raise IntegrityError(
                f"an alias or a ledger names version {number} of {self.model}, which MLflow does not have; "
                "restore mlruns from a backup"
            )
        return self.versions[number]

    def by_digest(self, digest: str) -> Registered | None:
        """Return the version whose tag names a sealed policy, if any."""
        return next((version for version in self.versions.values() if version.tags.get("digest") == digest), None)


class Models:
    """The versions of one registered model."""

    def __init__(self, client: MlflowClient, tracking_uri: str, name: str) -> None:
        self.name = name
        self._client = client
        self._tracking_uri = tracking_uri

    def look(self) -> Shown:
        """Read every alias, and every version with its tags."""
        return self._shown(self._search(""))

    def look_at(self, *numbers: int, digest: str | None = None) -> Shown:
        """Read every alias, and the versions with these numbers, with this digest, or that show a promotion."""
        versions = self._search(f" AND tags.{_PROMOTED} LIKE '%'")
        if digest is not None:
            versions += self._search(f" AND tags.digest = '{digest}'")
        for number in numbers:
            if (version := _found(partial(self._client.get_model_version, self.name, str(number)))) is not None:
                versions.append(version)
        return self._shown(versions)

    def alias(self, alias: str) -> int | None:
        """Return the number of the version that has an alias, if any."""
        version = _found(lambda: self._client.get_model_version_by_alias(self.name, alias))
        return None if version is None else int(version.version)

    def set_alias(self, alias: str, number: int) -> None:
        """Move an alias. It is one row, whose change is the moment of a promotion."""
        self._client.set_registered_model_alias(self.name, alias, str(number))

    def clear_alias(self, alias: str) -> None:
        """Remove an alias."""
        self._client.delete_registered_model_alias(self.name, alias)

    def describe(self, number: int, description: str) -> None:
        """Replace the description of a version."""
        self._client.update_model_version(self.name, str(number), description)

    def tag(self, number: int, tags: Mapping[str, str | None]) -> None:
        """Add or replace tags of a version; a value of None removes the tag."""
        for key, value in tags.items():
            if value is None:
                self._client.delete_model_version_tag(self.name, str(number), key)
            else:
                self._client.set_model_version_tag(self.name, str(number), key, value)

    def logged_model(self, experiment: str, run_id: str, policy: Path, digest: str, at: datetime) -> str:
        """Store the sealed directory as a logged model of time ``at`` unless it exists; return the model's id."""
        models = self._client.search_logged_models([experiment], filter_string=f"tags.digest = '{digest}'")
        ready = [model for model in models if str(model.status) == "READY"]
        if ready:
            return str(ready[0].model_id)
        model = self._client.create_logged_model(
            experiment,
            name=f"{self.name}-{digest[:8]}",
            source_run_id=run_id,
            tags={"digest": digest},
            model_type="policy",
        )
        with tempfile.TemporaryDirectory(prefix="simic-model-") as folder:
            write_model(Path(folder), policy, digest, at, has_loader=self.name == MODEL_NAME)
            self._client.log_model_artifacts(model.model_id, folder)
        self._client.finalize_logged_model(model.model_id, "READY")
        return str(model.model_id)

    def register(self, model_id: str, run_id: str, tags: Mapping[str, str]) -> Registered:
        """Create a version together with its tags, in one transaction."""
        if _found(lambda: self._client.get_registered_model(self.name)) is None:
            self._client.create_registered_model(self.name, description=_DESCRIPTIONS[self.name])
        with default_store(self._tracking_uri):
            version = self._client.create_model_version(
                self.name, source=f"{REFERENCE_PREFIX}{model_id}", run_id=run_id, tags=dict(tags), model_id=model_id
            )
        return _registered(version, {})

    def parse(self, reference: str) -> str | int:
        """Return the alias or the number in ``models:/<name>@<alias>`` or ``models:/<name>/<number>``.

        Raises:
            ConfigError: The reference has another form, or names another model.
        """
        match = _REFERENCE.fullmatch(reference)
        if match is None or match["name"] != self.name:
            raise ConfigError(
                f"{reference!r} is not a reference; expected {REFERENCE_PREFIX}{self.name}@{CHAMPION} or "
                f"{REFERENCE_PREFIX}{self.name}/3"
            )
        return str(match["alias"]) if match["alias"] else int(match["number"])

    def _search(self, condition: str) -> list[ModelVersion]:
        """Return every version that meets a condition, page by page."""
        versions: list[ModelVersion] = []
        token: str | None = ""
        while token is not None:
            page = self._client.search_model_versions(
                f"name = '{self.name}'{condition}", max_results=_PAGE, page_token=token or None
            )
            versions += page
            token = page.token or None
        return versions

    def _shown(self, model_versions: Iterable[ModelVersion]) -> Shown:
        model = _found(lambda: self._client.get_registered_model(self.name))
        aliases = {} if model is None else {alias: int(number) for alias, number in model.aliases.items()}
        versions = {
            version.number: version
            for version in (_registered(model_version, aliases) for model_version in model_versions)
        }
        return Shown(self.name, dict(sorted(versions.items())), aliases)

    def fetch(self, number: int, into: Path) -> Path:
        """Copy the stored files of a version to below ``into`` and return the folder of its policy; nothing is verified
        yet.

        Raises:
            IntegrityError: Files are missing.
            TransientError: The machine cannot read or write now.
        """
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        into.mkdir(parents=True)
        try:
            # A models:/ address would make MLflow add a file of its own, so the resolved location is used.
            location = self._client.get_model_version_download_uri(self.name, str(number))
            fetched = download_artifacts(artifact_uri=location, dst_path=str(into), tracking_uri=self._tracking_uri)
            return sealed_files(Path(fetched))
        except (MlflowException, OSError) as error:
            if (reason := _machine_failure(error)) is not None:
                raise TransientError(
                    f"{self.name} version {number}: its files cannot be copied to {into}: {reason}. Nothing is wrong "
                    f"with the version; make space or make the files readable, and give the same command again"
                ) from error
            raise IntegrityError(
                f"{self.name} version {number}: its files cannot be read: {error}; restore mlruns from a backup"
            ) from error


def _found(get: Callable[[], T]) -> T | None:
    """Return the answer of MLflow, or None if the object does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        return get()
    except MlflowException as error:
        if error.error_code in _ABSENT:
            return None
        raise


def _registered(version: ModelVersion, aliases: Mapping[str, int]) -> Registered:
    number = int(version.version)
    return Registered(
        name=version.name,
        number=number,
        run_id=str(version.run_id),
        aliases=sorted(alias for alias, holder in aliases.items() if holder == number),
        tags=dict(version.tags),
    )


def _machine_failure(error: Exception) -> str | None:
    """Return the machine's error, or None if files are missing or wrong.

    A copy of several files reports the errors of all of them as text.
    """
    numbers = {error.errno} if isinstance(error, OSError) and error.errno is not None else set()
    numbers |= {int(number) for number in _ERRNO.findall(str(error))}
    machine_errors = sorted(numbers & _MACHINE)
    return os.strerror(machine_errors[0]) if machine_errors else None
