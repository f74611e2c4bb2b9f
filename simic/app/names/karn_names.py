"""Which Karn a policy consults, by the settings or by the name of a controller such as ``champion+karn``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from simic.app.local_copies import LocalCopies
from simic.app.receipts import ReceiptStore
from simic.contracts.errors import ConfigError
from simic.contracts.names import CHAMPION, KARN
from simic.contracts.policy_names import SHORTEST
from simic.contracts.results.karn import KarnReport
from simic.contracts.results.receipts import PolicyVersion
from simic.contracts.settings.karn import ControllerConfig
from simic.ledgers.policies import candidate_versions, read_history
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.seal import verify

__all__ = ["KarnChoice", "Karns", "consulting_label", "parse_consulting"]

_CONSULTING = re.compile(rf"(?P<policy>.+)\+{KARN}(?:/(?P<digest>{CHAMPION}|[0-9a-f]{{{SHORTEST},64}}))?")
_FOLDER = re.compile(r"[0-9a-f]{64}")
_NONE = "this home has no Karn, `simic karn train` makes one"


class KarnChoice(NamedTuple):
    """A sealed Karn of the home."""

    path: Path
    digest: str


class Consulting(NamedTuple):
    """A policy that consults Karn, as it was named."""

    policy: str
    digest: str | None
    """First characters of Karn's digest, or ``champion``; None for the one trained last."""


def parse_consulting(name: str) -> Consulting | None:
    """Return the parts of ``POLICY+karn``, with ``/DIGEST`` or ``/champion`` behind it or not; None for other forms."""
    match = _CONSULTING.fullmatch(name)
    return None if match is None else Consulting(match["policy"], match["digest"])


def consulting_label(policy: str, digest: str) -> str:
    """Return the display name of a policy that consults the Karn of ``digest``."""
    return f"{policy}+{KARN}/{digest[:SHORTEST]}"


class Karns:
    """The sealed Karns of a home; a seal is checked before its Karn is returned."""

    def __init__(
        self,
        home: Home,
        keyring: Keyring,
        receipts: ReceiptStore,
        config: ControllerConfig,
        registry: Callable[[], Registry],
    ) -> None:
        self._home, self._keyring, self._receipts, self._config = home, keyring, receipts, config
        self._registry = registry
        self._copies = LocalCopies(home, keyring, registry, KARN, "karn-copies")

    def configured(self) -> KarnChoice | None:
        """Return the Karn that the settings let every policy consult; None if they let it consult none.

        Without ``controller.karn_digest`` it is the champion of Karn.

        Raises:
            ConfigError: if the home has no such Karn.
            IntegrityError: if it is not as it was sealed.
        """
        return self.named(self._config.karn_digest or CHAMPION) if self._config.karn == "consult" else None

    def champion(self) -> PolicyVersion | None:
        """Return the present champion of Karn, or None, without opening the registry of a home that judged no Karn.

        Raises:
            IntegrityError: if journal, ledgers and registry disagree about it.
        """
        is_empty = (
            not candidate_versions(self._home, KARN) and not read_history(self._home, self._keyring, KARN).entries
        )
        return None if is_empty else self._registry().champion()

    def champion_digest(self) -> str | None:
        """Return the digest of the present champion of Karn, or None."""
        champion = self.champion()
        return None if champion is None else champion.digest

    def named(self, digest: str | None) -> KarnChoice:
        """Return the Karn whose digest begins with ``digest``; None means the one trained last.

        ``champion`` is the champion of Karn. A registered Karn is fetched again if its copy is missing or damaged.

        Raises:
            ConfigError: if no Karn or several fit.
            IntegrityError: if it is not as it was sealed.
        """
        if digest == CHAMPION:
            return self._champion_copy()
        registered = {version.digest: version.reference for version in candidate_versions(self._home, KARN)}
        whole = self._receipts.latest(KarnReport, _NONE).digest if digest is None else self._whole(digest, registered)
        if whole in registered:
            return self._fetched(whole, registered[whole])
        path = self._home.karn / whole
        if not path.is_dir():
            raise ConfigError(
                f"Karn {whole[:12]} is missing: no directory at {path}; `simic karn train` makes it again"
            )
        verify(path, self._keyring, whole)
        return KarnChoice(path, whole)

    def _champion_copy(self) -> KarnChoice:
        """Return the champion of Karn; raise ConfigError if there is none."""
        if (champion := self.champion()) is None:
            raise ConfigError(
                "no Karn is champion: `simic karn train` makes one, `simic validate --model karn` and `simic promote "
                "--model karn` judge and promote it; controller.karn_digest names one that is not promoted"
            )
        return self._fetched(champion.digest, champion.reference)

    def _fetched(self, digest: str, reference: str) -> KarnChoice:
        """Return a registered Karn, copied from the registry if ``data/karn`` lacks it or its copy is damaged."""
        path = self._home.karn / digest
        self._copies.ensure(path, digest, reference)
        return KarnChoice(path, digest)

    def _whole(self, digest: str, registered: Iterable[str]) -> str:
        folders = (path.name for path in self._home.karn.glob("*/") if _FOLDER.fullmatch(path.name))
        known = sorted({*folders, *registered})
        fitting = [name for name in known if name.startswith(digest)]
        if len(fitting) != 1:
            shown = ", ".join(name[:12] for name in fitting or known)
            raise ConfigError(
                f"several Karns have a digest that begins with {digest!r}: {shown}; give more characters"
                if fitting
                else f"no Karn has a digest that begins with {digest!r}; " + (f"Karns: {shown}" if known else _NONE)
            )
        return fitting[0]
