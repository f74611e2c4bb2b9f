"""Registered versions of one model: found, made, read back and fetched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simic.contracts.errors import ConfigError, IntegrityError
from simic.registry.store import default_store
from simic.registry.versions import Lineage, next_version, parse

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

__all__ = ["CANDIDATE", "CHAMPION", "MODEL_NAME", "Models", "Registered"]

MODEL_NAME = "tamiyo"
CANDIDATE = "candidate"
CHAMPION = "champion"
_MAX_VERSIONS = 10_000
_REFERENCE = re.compile(r"models:/(?P<name>[a-z][a-z0-9_-]{0,63})(?:@(?P<alias>[a-z]+)|/(?P<number>[1-9]\d{0,8}))")


class Registered(NamedTuple):
    """One version as the registry holds it."""

    name: str
    number: int
    semantic_version: str
    digest: str
    run_id: str
    aliases: list[str]
    tags: Mapping[str, str]


class Models:
    """The versions of one registered model."""

    def __init__(self, client: MlflowClient, tracking_uri: str, name: str = MODEL_NAME) -> None:
        self.name = name
        self._client = client
        self._tracking_uri = tracking_uri

    def all(self) -> list[Registered]:
        """Every version, in the order of their numbers."""
        return self._search(f"name='{self.name}'")

    def by_digest(self, digest: str) -> Registered | None:
        """The version of a sealed policy, if it was recorded."""
        return next(iter(self._search(f"name='{self.name}' and tags.digest='{digest}'")), None)

    def by_alias(self, alias: str) -> Registered | None:
        """The version an alias points at, if any."""
        number = self._aliases().get(alias)
        return None if number is None else self.get(number)

    def get(self, number: int) -> Registered:
        """A version by its number."""
        found = next((version for version in self.all() if version.number == number), None)
        if found is None:
            raise IntegrityError(f"the registry has no version {number} of {self.name}, which it refers to")
        return found

    def _search(self, query: str) -> list[Registered]:
        found = self._client.search_model_versions(query, max_results=_MAX_VERSIONS)
        aliases = self._aliases()  # a search of versions does not tell them
        return sorted((_registered(version, aliases) for version in found), key=lambda version: version.number)

    def _aliases(self) -> dict[str, int]:
        models = self._client.search_registered_models(f"name='{self.name}'")
        return {alias: int(number) for alias, number in models[0].aliases.items()} if models else {}

    def set_alias(self, alias: str, number: int) -> None:
        """One row: the moment at which a promotion takes effect."""
        self._client.set_registered_model_alias(self.name, alias, str(number))

    def clear_alias(self, alias: str) -> None:
        """No version has this alias."""
        self._client.delete_registered_model_alias(self.name, alias)

    def tag(self, number: int, tags: Mapping[str, str]) -> None:
        """Add or replace tags of a version."""
        for key, value in tags.items():
            self._client.set_model_version_tag(self.name, str(number), key, value)

    def logged_model(self, experiment: str, run_id: str, policy: Path, digest: str) -> str:
        """The MLflow model that holds the sealed directory byte for byte; returns its id."""
        found = self._client.search_logged_models([experiment], filter_string=f"tags.digest = '{digest}'")
        ready = [model for model in found if str(model.status) == "READY"]
        if ready:
            return str(ready[0].model_id)
        model = self._client.create_logged_model(
            experiment,
            name=f"{self.name}-{digest[:8]}",
            source_run_id=run_id,
            tags={"digest": digest, "mlflow.model.isExternal": "true"},
            model_type="policy",
        )
        self._client.log_model_artifacts(model.model_id, str(policy))
        self._client.finalize_logged_model(model.model_id, "READY")
        return str(model.model_id)

    def register(self, model_id: str, run_id: str, lineage: Lineage, tags: Mapping[str, str]) -> Registered:
        """A new version with the next semantic number; its tags come with it in one transaction."""
        if not self._client.search_registered_models(f"name='{self.name}'"):
            self._client.create_registered_model(
                self.name, description="Growth controllers that passed through the gate"
            )
        highest = max(self.all(), key=lambda version: parse(version.semantic_version), default=None)
        number = next_version(*_precedent(highest), lineage)
        own = {
            "semantic_version": number,
            "contract": str(lineage.contract),
            "architecture": lineage.architecture,
            "model_id": model_id,
        }
        with default_store(self._tracking_uri):
            version = self._client.create_model_version(
                self.name, source=f"models:/{model_id}", run_id=run_id, tags={**tags, **own}, model_id=model_id
            )
        return self.get(int(version.version))

    def resolve(self, reference: str) -> Registered:
        """The version behind ``models:/<name>@<alias>`` or ``models:/<name>/<number>``."""
        match = _REFERENCE.fullmatch(reference)
        if match is None or match["name"] != self.name:
            raise ConfigError(
                f"{reference!r} is no reference; expected models:/{self.name}@{CHAMPION} or models:/{self.name}/3"
            )
        known = {version.number: version for version in self.all()}
        found = self.by_alias(match["alias"]) if match["alias"] else known.get(int(match["number"]))
        if found is None:
            names = ", ".join(f"{number} ({version.semantic_version})" for number, version in known.items())
            hint = "; no policy was promoted yet" if match["alias"] == CHAMPION else ""
            raise ConfigError(f"{reference} does not exist{hint}; versions are {names or 'none yet'}")
        return found

    def fetch(self, version: Registered, into: Path) -> Path:
        """Copy the stored files of a version to below ``into``; returns where they lie, nothing verified yet."""
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        into.mkdir(parents=True)
        try:
            # Through the resolved location: a models:/ address would add a file of MLflow's own.
            location = self._client.get_model_version_download_uri(self.name, str(version.number))
            return Path(download_artifacts(artifact_uri=location, dst_path=str(into), tracking_uri=self._tracking_uri))
        except (MlflowException, OSError) as error:
            raise IntegrityError(f"{self.name} version {version.number}: its files cannot be read: {error}") from error


def _registered(version: ModelVersion, aliases: Mapping[str, int]) -> Registered:
    tags = dict(version.tags)
    missing = sorted({"digest", "semantic_version"} - set(tags))
    if missing:
        raise IntegrityError(f"{version.name} version {version.version} was not recorded by simic: no tags {missing}")
    number = int(version.version)
    return Registered(
        name=version.name,
        number=number,
        semantic_version=tags["semantic_version"],
        digest=tags["digest"],
        run_id=str(version.run_id),
        aliases=sorted(alias for alias, holder in aliases.items() if holder == number),
        tags=tags,
    )


def _precedent(highest: Registered | None) -> tuple[str | None, Lineage | None]:
    if highest is None:
        return None, None
    return highest.semantic_version, Lineage(int(highest.tags["contract"]), highest.tags["architecture"])
