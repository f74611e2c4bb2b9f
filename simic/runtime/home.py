"""The home: the directory that holds everything, its subdirectories, and whether they can be written."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from enum import Enum
from errno import EACCES, EEXIST, ELOOP, ENAMETOOLONG, ENOTDIR, EPERM, EROFS
from pathlib import Path

from simic.contracts.errors import ConfigError
from simic.contracts.lake_url import parse_url
from simic.runtime.files import ignore_in_git
from simic.runtime.sqlite_files import sqlite_url

__all__ = [
    "FOLDER_CHARACTERS",
    "HOME_VARIABLE",
    "LAKE_VARIABLE",
    "MLFLOW_URL_VARIABLE",
    "PREFECT_URL_VARIABLE",
    "Home",
    "HomeUse",
    "default_home",
    "resolve_home",
]

FOLDER_CHARACTERS = 16
"""Number of characters of a digest in the names of the folders of snapshots and runs."""
HOME_VARIABLE = "SIMIC_HOME"
MLFLOW_URL_VARIABLE, PREFECT_URL_VARIABLE = "SIMIC_MLFLOW_URL", "SIMIC_PREFECT_URL"
"""Addresses of the running UIs; the commands that start stages set them, for links from one UI to the other."""
LAKE_VARIABLE = "SIMIC_LAKE_URL"
"""Environment variable with the address of the store of landed parts, if it is not in the home."""
_WRONG_PLACE = frozenset({EACCES, EEXIST, ELOOP, ENAMETOOLONG, ENOTDIR, EPERM, EROFS})
"""Exceptions that a repeated command would meet again, unlike a full disk."""


class HomeUse(Enum):
    """Use that a command makes of the home."""

    NONE = "none"
    """Needs no home."""
    LOOK = "look"
    """Needs a home and writes only temporary files."""
    CHANGE = "change"
    """Needs a home and writes to it."""
    MAKE = "make"
    """Writes, and creates the home if there is none."""


@dataclass(frozen=True)
class Home:
    """The directory that holds everything that a run writes.

    ``root`` is absolute and without symbolic links, so that every name of one directory is the same home. Raises
    ConfigError for a name that no directory can have, or that is not UTF-8.
    """

    root: Path
    lake_url: str | None = None
    """Requested store of landed parts; None for ``experience``, or the store in the ledger."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", _resolved(self.root))

    @property
    def data(self) -> Path:
        """Directory of experience, snapshots, policies and ledgers."""
        return self.root / "data"

    @property
    def spool(self) -> Path:
        """Directory of the embedded bus."""
        return self.data / "spool"

    @property
    def experience(self) -> Path:
        """Directory of landed Parquet parts."""
        return self.data / "experience"

    @property
    def ids(self) -> Path:
        """Directory of tombstones, and of ids of parts in another store, for deduplication."""
        return self.data / "ids"

    @property
    def ledger(self) -> Path:
        """Directory of the append-only ledgers, which alone decide what is committed."""
        return self.data / "ledger"

    @property
    def quarantine(self) -> Path:
        """Directory of refused reports."""
        return self.data / "quarantine"

    @property
    def snapshots(self) -> Path:
        """Directory of snapshots, by digest."""
        return self.data / "snapshots"

    @property
    def unfinished_snapshots(self) -> Path:
        """Directory of snapshots that are being made or removed; only the holder of the lock ``curate`` uses it.

        It lies among the snapshots, because their directory may be on another file system than ``tmp``, and only a
        rename within one file system publishes or removes a whole directory.
        """
        return self.snapshots / ".tmp"

    def snapshot_folder(self, digest: str) -> Path:
        """Return the directory of the snapshot with this digest."""
        return self.snapshots / digest[:FOLDER_CHARACTERS]

    @property
    def policies(self) -> Path:
        """Directory of sealed policies, by digest."""
        return self.data / "policies"

    @property
    def karn(self) -> Path:
        """Directory of sealed Karns, by digest."""
        return self.data / "karn"

    @property
    def curves(self) -> Path:
        """Directory of training curves, by digest of the policy."""
        return self.data / "curves"

    @property
    def receipts(self) -> Path:
        """Directory of the receipts that stages returned."""
        return self.data / "receipts"

    @property
    def runs(self) -> Path:
        """Directory of curves, figures and trials, by run."""
        return self.data / "runs"

    def run_folder(self, digest: str) -> Path:
        """Return the directory of the figures and pages about the policy or Karn with this digest."""
        return self.runs / digest[:FOLDER_CHARACTERS]

    @property
    def telemetry(self) -> Path:
        """Directory of telemetry packets and missed service levels, a file of JSON lines each."""
        return self.runs / "telemetry"

    @property
    def metrics(self) -> Path:
        """Directory of text files for the textfile collector of Prometheus' node exporter."""
        return self.runs / "metrics"

    @property
    def plans(self) -> Path:
        """Plan books of this home, a JSON file per set; they come before the shipped ones."""
        return self.data / "plans"

    @property
    def proof(self) -> Path:
        """Directory of the parts of a proof: the homes of its trainings, and a receipt per training and per trial."""
        return self.data / "proof"

    @property
    def ab(self) -> Path:
        """Directory of the trainings of compared recipes: a home and a receipt each."""
        return self.data / "ab"

    @property
    def outbox(self) -> Path:
        """Directory of policy updates that wait for the bus or were delivered."""
        return self.data / "outbox"

    @property
    def locks(self) -> Path:
        """Directory of lock files."""
        return self.data / ".locks"

    @property
    def tmp(self) -> Path:
        """Directory of unfinished files, on the file system of their targets."""
        return self.data / "tmp"

    @property
    def keys(self) -> Path:
        """Directory of the home's signing key and the public keys that it trusts."""
        return self.data / "keys"

    @property
    def catalogue(self) -> Path:
        """DuckDB file with views over everything, rebuilt from the other files."""
        return self.data / "catalogue.duckdb"

    @property
    def mlruns(self) -> Path:
        """Directory of MLflow's database and artifacts: the registry, and the runs of judged policies."""
        return self.root / "mlruns"

    @property
    def mlflow_database(self) -> Path:
        """Database of MLflow; without it nothing is registered or logged."""
        return self.mlruns / "mlflow.db"

    @property
    def tracking_uri(self) -> str:
        """Tracking URI of MLflow's database."""
        return sqlite_url(self.mlflow_database)

    @property
    def artifacts(self) -> Path:
        """Directory of MLflow's artifacts."""
        return self.mlruns / "artifacts"

    @property
    def prefect(self) -> Path:
        """Directory of Prefect's database, results and profiles."""
        return self.root / ".prefect"

    @property
    def prefect_database(self) -> Path:
        """Database of Prefect, created by Prefect."""
        return self.prefect / "prefect.db"

    def is_home(self) -> bool:
        """Return whether there is a home, which is a directory with ledgers. Raises ConfigError if it is unreadable."""
        try:
            return self.ledger.is_dir()
        except OSError as error:
            raise ConfigError(f"cannot read the home {self.root}: {error.strerror}; check its permissions") from error

    def require(self) -> None:
        """Raise ConfigError unless there is a home; create nothing."""
        if not self.is_home():
            detail = ", which is not a directory" if self.root.exists() and not self.root.is_dir() else ""
            raise ConfigError(
                f"no Simic home at {self.root}{detail}: `simic --home {self.root} init` creates one there; --home or "
                f"{HOME_VARIABLE} names another"
            )

    def create(self) -> None:
        """Create every missing directory; only the owner may enter the one with the private key.

        Git ignores those with secrets, wherever the home is, because ``git add .`` shall commit no key. It ignores
        ``data`` and ``mlruns`` if they are new; else they may hold files of others.

        Raises ConfigError if the home cannot be created or written.
        """
        folders = (
            self.spool, self.experience, self.ledger, self.quarantine, self.snapshots, self.policies,
            self.receipts, self.runs, self.outbox, self.locks, self.tmp, self.artifacts, self.prefect,
        )  # fmt: skip
        try:
            new = [path for path in (self.data, self.mlruns) if not path.exists()]
            for path in folders:
                path.mkdir(parents=True, exist_ok=True)
            self.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in (self.keys, self.prefect, *new):
                ignore_in_git(path)
        except OSError as error:
            if error.errno not in _WRONG_PLACE:
                raise
            raise ConfigError(
                f"cannot make a home at {self.root}: {error.filename}: {error.strerror}; "
                f"set {HOME_VARIABLE} or use --home to name a directory that can be written"
            ) from error
        self.require_writable()

    def require_writable(self) -> None:
        """Raise ConfigError for the first directory that this process may not write to."""
        for path in (self.data, self.ledger, self.locks, self.tmp, self.receipts, self.mlruns, self.prefect):
            if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
                raise ConfigError(
                    f"the home {self.root} cannot be written: {path} is read-only for this user; verbs that only look "
                    "work, others need permission to write, or another home (--home)"
                )


def _resolved(path: Path) -> Path:
    try:
        resolved = path.resolve()
        str(resolved).encode()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be a home: {error}") from error
    return resolved


def resolve_home() -> Home:
    """Return ``SIMIC_HOME``, or ``default_home``.

    Raises ConfigError if ``SIMIC_LAKE_URL`` is not an address of a lake, or the home's path is not UTF-8.
    """
    named, lake_url = os.environ.get(HOME_VARIABLE), _lake_url()
    root = Path(named).expanduser() if named else default_home()
    try:
        str(root.absolute()).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"the home {root} is not UTF-8, so it cannot be named in receipts; see {HOME_VARIABLE}"
        ) from None
    return Home(root, lake_url)


def default_home() -> Path:
    """Return the current directory if it is a home, or the checkout around it, or the current directory."""
    here = Path.cwd()
    if _has_ledgers(here):
        return here
    return next((path for path in (here, *here.parents) if _is_checkout(path)), here)


def _lake_url() -> str | None:
    url = os.environ.get(LAKE_VARIABLE) or None
    try:
        if url is not None:
            parse_url(url)
    except ConfigError as error:
        raise ConfigError(f"{LAKE_VARIABLE}: {error}") from None
    return url


def _has_ledgers(path: Path) -> bool:
    try:
        return Home(path).is_home()
    except ConfigError:
        return False  # whoever uses that directory as a home is told why it cannot be one


def _is_checkout(path: Path) -> bool:
    project = path / "pyproject.toml"
    if not project.is_file():
        return False
    try:
        return bool(tomllib.loads(project.read_text("utf-8")).get("project", {}).get("name") == "simic")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError):
        return False  # a project of somebody else further up is not searched
