"""What ``mlflow.pyfunc.load_model("models:/tamiyo@champion")`` runs; ``MLmodel`` of a version names this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simic.api.home import Home
from simic.api.policy import Policy, load_policy
from simic.api.wire import parse_object
from simic.contracts.errors import ConfigError

__all__ = ["PyfuncPolicy"]


class PyfuncPolicy:
    """A policy with the interface of MLflow's models."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> list[str]:  # noqa: ARG002
        """Return one action per row, as JSON.

        Args:
            model_input: A data frame with the columns ``state`` and ``available``, each the JSON of that field of a
                field report.
            params: MLflow passes it; the signature has none.

        Raises:
            ContractError: if a text is not JSON, or not a state or masks.
        """
        states, masks = ([parse_object(text, name) for text in model_input[name]] for name in ("state", "available"))
        return [action.model_dump_json() for action in self.policy.decide(states, masks)]


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> PyfuncPolicy:
    """Load a policy that MLflow fetched; the seal is verified as by ``load_policy``.

    Args:
        path: Folder of the sealed policy.
        model_config: ``trusted_keys`` names a folder of ``<key id>.pub`` files; by default the keys of the home are
            trusted that the command line would use.

    Raises:
        ConfigError: if there are no keys.
        IntegrityError: if a byte is not as sealed, or no trusted key signed the seal.
    """
    trusted = (model_config or {}).get("trusted_keys")
    try:
        keys = Home() if trusted is None else str(trusted)
    except ConfigError as error:
        raise ConfigError(f'{error}. Or pass model_config={{"trusted_keys": "<folder of .pub files>"}}') from error
    return PyfuncPolicy(load_policy(f"{path}/", trusted_keys=keys))
