"""The files of a registered version: what is sealed, and for a policy what ``mlflow.pyfunc.load_model`` needs.

``policy/`` is the sealed directory, byte for byte. ``MLmodel`` names a module of the installed Simic as the loader, so
MLflow stores no code and nothing pickled. It has a signature, and ``input_example.json`` has one row of it. Simic
itself reads ``policy/`` only. Karn decides nothing alone, so its ``MLmodel`` names no loader.
"""

from __future__ import annotations

import json
import platform
import shutil
from datetime import datetime
from pathlib import Path

from simic.contracts.examples import EXAMPLES

__all__ = ["POLICY_FOLDER", "sealed_files", "write_model"]

POLICY_FOLDER = "policy"
_EXAMPLE_NAME = "input_example.json"
_LOADER = "simic.api.pyfunc"
_COLUMNS = ("state", "available")


def sealed_files(fetched: Path) -> Path:
    """Return the folder of the sealed policy among the files of a version.

    Versions that were registered before ``MLmodel`` hold nothing else and no folder.
    """
    policy = fetched / POLICY_FOLDER
    return policy if policy.is_dir() else fetched


def write_model(folder: Path, policy: Path, digest: str, at: datetime, *, has_loader: bool) -> None:
    """Write the files of a version into an empty folder; the same policy and time give the same files.

    Args:
        folder: empty folder.
        policy: sealed policy.
        digest: digest of the policy.
        at: time that the model shows as its creation.
        has_loader: whether ``mlflow.pyfunc.load_model`` loads it.
    """
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    shutil.copytree(policy, folder / POLICY_FOLDER)
    created, uuid = f"{at:%Y-%m-%d %H:%M:%S.%f}", digest[:32]
    if not has_loader:
        Model(utc_time_created=created, model_uuid=uuid).save(str(folder / "MLmodel"))
        return
    report = EXAMPLES["FieldReport"]()
    row = [json.dumps(report.model_dump(mode="json")[name]) for name in _COLUMNS]
    (folder / _EXAMPLE_NAME).write_text(json.dumps({"columns": _COLUMNS, "data": [row]}), "utf-8")
    model = Model(
        utc_time_created=created,
        model_uuid=uuid,
        signature=ModelSignature(
            inputs=Schema([ColSpec(DataType.string, name) for name in _COLUMNS]),
            outputs=Schema([ColSpec(DataType.string)]),
        ),
        saved_input_example_info={"artifact_path": _EXAMPLE_NAME, "type": "dataframe", "pandas_orient": "split"},
    )
    # As mlflow.pyfunc.add_to_model does; importing that module takes a second and raises warnings.
    model.add_flavor(
        "python_function",
        loader_module=_LOADER,
        data=POLICY_FOLDER,
        config={"trusted_keys": None},
        python_version=platform.python_version(),
    )
    model.save(str(folder / "MLmodel"))
