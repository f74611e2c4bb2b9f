"""The page of the experiment in MLflow: its description, and a saved view of its runs. Both are tags.

MLflow's UI stores a shared view as JSON in the tag ``mlflow.sharedViewState.<key>`` and opens it with the query
parameter ``viewStateShareKey=<key>``. Columns have no other address: a list of columns in the URL is ignored.
"""

from __future__ import annotations

import json

from simic.contracts.names import MODELS
from simic.ledgers.promotions import History
from simic.registry.headline import HEADLINES
from simic.registry.version_status import STATUS_TAG

__all__ = ["DESCRIPTION_TAG", "RUNS_VIEW_TAG", "experiment_tags", "runs_page"]

DESCRIPTION_TAG = "mlflow.note.content"
"""Tag that MLflow's UI shows as the description of an experiment or a run."""
_KEY = "simic"
RUNS_VIEW_TAG = f"mlflow.sharedViewState.{_KEY}"
"""Tag of the experiment that holds the view."""
_DIGEST_CHARACTERS = 12
_METRICS = tuple(f"metrics.`{name}`" for name in HEADLINES)
_COLUMNS = (f"tags.`{STATUS_TAG}`", *_METRICS, "attributes.`Models`", "tags.`gate_failed`", "params.`seed`")
_WIDTH = 190
"""Width of the name column in pixels; the longest metric name just fits."""


def experiment_tags(history: History) -> dict[str, str]:
    """Return the tags of the experiment: its description and the saved view of its runs."""
    return {DESCRIPTION_TAG: _description(history), RUNS_VIEW_TAG: _runs_view()}


def _runs_view() -> str:
    """Return the view as JSON: newest run first, with status and headline metrics beside each name."""
    state = {
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(_COLUMNS),
        "columnOrder": list(_METRICS),
        "columnWidths": dict.fromkeys(_METRICS, _WIDTH),
    }
    return json.dumps(state)


def _description(history: History) -> str:
    """Return Markdown for the top of MLflow's runs page: who is live, and how runs compare."""
    entry = history.champion
    if entry is None:
        live = f"**Live: no {MODELS[history.model]}.** The gate has accepted no candidate that was promoted."
    else:
        version, validation = entry.version, entry.validation
        live = (
            f"**Live: {version.name} {version.semantic_version}**, version {version.number}, policy "
            f"`{version.digest[:_DIGEST_CHARACTERS]}`, since {entry.at:%Y-%m-%d %H:%M} UTC; gain over `wait`: mean "
            f"{validation.return_over_wait:.3g}, lower bound {validation.lower_bound:.3g} "
            f"({100 * validation.confidence:g}% interval, {validation.episodes} held-out hosts)."
        )
    return (
        f"{live}\n\n"
        "A run is one judged policy. Each judgement draws its own hosts, so returns of different runs do not compare. "
        "Compare paired differences: `gain_over_X_mean` is the candidate's return minus that of controller X on the "
        "same hosts, and `gain_over_X_lower` is the lower bound of its interval.\n\n"
        "Simic writes this text from its signed journal at every promotion and rollback."
    )


def runs_page(url: str, experiment: str) -> str:
    """Return the address of the saved view in the MLflow UI at ``url``.

    The query follows the fragment, where MLflow reads it. ``workflowType`` selects the pages of model training; without
    it MLflow opens its pages for language models.
    """
    return f"{url}/#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={_KEY}"
