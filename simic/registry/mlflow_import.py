"""Imports MLflow so that it stays off the network and writes no warnings of its dependencies."""

from __future__ import annotations

import logging
import os
import warnings

__all__ = ["import_mlflow"]

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Environment variables that MLflow reads at import; they keep it off the network."""


def import_mlflow() -> None:
    """Import MLflow; what the caller imports from it afterwards is already loaded."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        # Third-party deprecations at import time cannot be fixed here.
        warnings.simplefilter("ignore")
        import mlflow.store.db_migrations  # noqa: F401
    for name in ("mlflow.store.db.utils", "alembic.runtime.migration"):
        logging.getLogger(name).setLevel(logging.WARNING)
