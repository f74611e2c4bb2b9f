"""The sealed policies of a home, and controllers made from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simic.app.local_copies import LocalCopies
from simic.app.names.controller_names import check_controller
from simic.app.names.karn_names import KarnChoice, Karns, consulting_label, parse_consulting
from simic.app.names.policy_names import display_name, locate, require_path
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.names import CHAMPION, CHAMPION_REFERENCE, LEARNED, MODEL_NAME, REFERENCE_PREFIX
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers import CANDIDATES_LEDGER, POLICIES_LEDGER, PROMOTIONS_LEDGER
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.seal import Seal, verify
from simic.validation.baselines.plan_book import PLAN_CONTROLLERS

__all__ = ["Policies"]


class Policies:
    """Finds a policy by name, digest, directory or reference, and checks its seal before returning it."""

    def __init__(self, home: Home, keyring: Keyring, registry: Callable[[], Registry], karns: Karns) -> None:
        self._home = home
        self._keyring = keyring
        self._registry = registry
        self._karns = karns
        self._copies = LocalCopies(home, keyring, registry, MODEL_NAME, "policies")

    def seal(self, path: Path, digest: str | None = None) -> Seal:
        """Return the seal of a policy directory.

        Raises:
            IntegrityError: if a byte differs from what a trusted key sealed, or the digest is not ``digest``.
        """
        return verify(path, self._keyring, digest)

    def check(self, path: Path, digest: str | None = None) -> str:
        """Check a policy directory like ``seal``, and return its digest."""
        return self.seal(path, digest).digest

    def champion(self) -> PolicyVersion | None:
        """Return the present champion, or None.

        Raises:
            IntegrityError: if journal, ledgers and registry disagree about it.
        """
        return None if self.is_empty() else self._registry().champion()

    def champion_digest(self) -> str | None:
        """Return the digest of the present champion, or None if there is none."""
        champion = self.champion()
        return None if champion is None else champion.digest

    def is_empty(self) -> bool:
        """Return whether no policy was ever recorded here, without opening the registry, which takes seconds."""
        names = (CANDIDATES_LEDGER, POLICIES_LEDGER, PROMOTIONS_LEDGER)
        places = [self._home.mlflow_database, *(self._home.ledger / name for name in names)]
        return not any(path.exists() for path in places)

    def fetch(self, reference: str) -> Path:
        """Return the directory of a verified local copy of a registered policy."""
        version = self._registry().find(reference)
        path = self._home.policies / version.digest
        self._copies.ensure(path, version.digest, version.reference)
        return path

    def fetch_champion(self, digest: str) -> Path:
        """Return the directory of the champion.

        Raises:
            ConfigError: if the champion is no longer the policy of this digest.
        """
        path = self.fetch(CHAMPION_REFERENCE)
        if not self._copies.is_as_sealed(path, digest):
            raise ConfigError(
                f"the champion changed from {digest[:12]} during this run; restart the run, or judge its policy "
                "against the present champion: `simic validate --policy DIGEST`"
            )
        return path

    def learned(self, path: Path, digest: str, *, is_decisive: bool) -> ControllerSpec:
        """Return the spec of the controller that acts with the policy of ``digest``; another one at ``path`` is
        refused. It consults Karn if ``controller.karn`` says so.

        Raises:
            ConfigError: if it is to consult a Karn that the home does not have.
        """
        return self._acting(path, digest, self._karns.configured(), is_decisive=is_decisive)

    def _acting(self, path: Path, digest: str, karn: KarnChoice | None, *, is_decisive: bool) -> ControllerSpec:
        return ControllerSpec(
            name=LEARNED,
            policy_path=str(path),
            policy_digest=digest,
            keyring_path=str(self._home.keys),
            is_decisive=is_decisive,
            karn_path=None if karn is None else str(karn.path),
            karn_digest=None if karn is None else karn.digest,
        )

    def at(self, name: str) -> Path | None:
        """Return the verified directory of a policy by name; None for a word that is not the name of a policy.

        ``name`` is ``champion``, a reference of the registry, a version (``tamiyo/2``, ``2``), the first 8 or more
        characters of a digest, or a directory with a ``/`` in its path.

        Raises:
            ConfigError: if no policy or several have that name.
            IntegrityError: if the policy is not as it was sealed.
        """
        if name == CHAMPION or name.startswith(REFERENCE_PREFIX):
            return self.fetch(CHAMPION_REFERENCE if name == CHAMPION else name)
        if (named := locate(self._home, name)) is not None:
            path = named.path
            if named.reference is not None and (path is None or not self._copies.is_as_sealed(path, named.digest)):
                path = self.fetch(named.reference)
            path = path or self._home.policies / named.digest
            self.check(path, named.digest)
            return path
        if "/" in name:  # a bare word is never a directory, so that a folder of that name cannot hide a controller
            self.check(require_path(name))
            return Path(name).absolute()
        return None

    def label(self, name: str, spec: ControllerSpec) -> str:
        """Return the name of a controller in tables: short for a policy, however it was named."""
        if spec.policy_path is None:
            return name
        consulting = parse_consulting(name)
        is_champion = (name if consulting is None else consulting.policy) == CHAMPION
        policy = CHAMPION if is_champion else display_name(self._home, self.check(Path(spec.policy_path)))
        return policy if spec.karn_digest is None else consulting_label(policy, spec.karn_digest)

    def spec(self, name: str, *, is_decisive: bool) -> ControllerSpec:
        """Return the spec of a controller by its name, or of a policy by one of the names of ``at``.

        ``NAME+karn`` is the policy ``NAME`` consulting the Karn trained last, ``NAME+karn/DIGEST`` another one and
        ``NAME+karn/champion`` the champion of Karn, whatever ``controller.karn`` says.

        Raises:
            ConfigError: if there is no such controller, policy or Karn.
        """
        if (consulting := parse_consulting(name)) is not None:
            if (policy := self.at(consulting.policy)) is None:
                raise ConfigError(f"{name!r}: {consulting.policy!r} is not a policy, and only policies consult Karn")
            karn = self._karns.named(consulting.digest)
            return self._acting(policy, self.check(policy), karn, is_decisive=is_decisive)
        if (policy := self.at(name)) is not None:
            return self.learned(policy, self.check(policy), is_decisive=is_decisive)
        check_controller(name)
        return ControllerSpec(name=name, plans_path=str(self._home.plans) if name in PLAN_CONTROLLERS else None)
