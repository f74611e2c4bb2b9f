"""Names shared by processes, ledgers and external stores, each defined once."""

from __future__ import annotations

import re

__all__ = [
    "ALONE",
    "BLIND",
    "CANDIDATE",
    "CHAMPION",
    "CHAMPION_REFERENCE",
    "FIELD_REPORTS",
    "FIELD_REPORT_TYPE",
    "HEURISTIC",
    "KARN",
    "KEY_LIMIT",
    "LEARNED",
    "MODELS",
    "MODEL_NAME",
    "ORACLE",
    "POLICY_UPDATES",
    "POLICY_UPDATE_TYPE",
    "RANDOM",
    "REFERENCE_PREFIX",
    "SHORT",
    "STAGED",
    "SYMPTOM",
    "TOPICS",
    "WAIT",
    "consulting_name",
    "is_learned",
    "judged_name",
    "maker_of",
    "short",
]

SHORT = 12
"""Number of characters of a digest that are shown; a verb that takes a digest accepts its beginning."""
_DIGEST = re.compile("[0-9a-f]{64}")

MODEL_NAME = "tamiyo"
"""Name of the registered model, and of the controller in production that a policy update is for."""
CHAMPION = "champion"
"""The promoted policy: as a controller, a row of a report and an alias in MLflow."""
ALONE = "policy_alone"
"""The champion without Karn, as a row of a judgement of Karn, whose candidate is the champion consulting it."""
CANDIDATE = "candidate"
"""The policy under judgement: as a row of a report, and as an alias in MLflow for the newest registered version."""
STAGED = "staged"
"""Alias in MLflow for the accepted policy that waits to be promoted."""
REFERENCE_PREFIX = "models:/"
"""Prefix of a reference to a version in MLflow's registry."""
CHAMPION_REFERENCE = f"{REFERENCE_PREFIX}{MODEL_NAME}@{CHAMPION}"

FIELD_REPORTS = "tamiyo.field_reports"
"""Topic of the bus: one ``FieldReport`` a line."""
FIELD_REPORT_TYPE = "tamiyo.field_report"
"""Event type of an ``EventEnvelope`` around a ``FieldReport``."""
POLICY_UPDATES = "innovation.policy"
"""Topic of the bus: one ``EventEnvelope`` around a ``PolicyUpdate`` a line."""
TOPICS = (FIELD_REPORTS, POLICY_UPDATES)
"""Every topic of the bus."""
POLICY_UPDATE_TYPE = "innovation.policy_update"
"""Event type of an ``EventEnvelope`` around a ``PolicyUpdate``."""

KARN = "karn"
"""The second controller, which proposes blueprints, and the name of its registered model."""
MODELS = {MODEL_NAME: "policy", KARN: "Karn"}
"""Registered models, each with a champion of its own, and what a version of each is called."""
LEARNED = "learned"
"""Name in field reports of a policy that acts alone, and of the controller that follows a sealed policy."""
_CONSULTING = f"{LEARNED}-{KARN}-"

WAIT, RANDOM = "wait", "random"
"""Controllers that know nothing: one never grows, and its row is what gains are measured against."""
HEURISTIC, BLIND, SYMPTOM, ORACLE = "heuristic", "blind", "symptom", "oracle"
"""Controllers whose rules and plans a plan book holds."""

KEY_LIMIT = 2**31
"""Host keys are whole numbers in [0, 2**31)."""


def consulting_name(digest: str) -> str:
    """Return the name in field reports of a policy that consults the Karn of ``digest``."""
    return f"{_CONSULTING}{digest[:16]}"


def maker_of(model: str) -> str:
    """Return the command that makes a champion of a registered model."""
    return "`simic run`" if model == MODEL_NAME else f"`simic promote --model {model}`"


def judged_name(model: str, digest: str) -> str:
    """Return what a text calls a judged version of a registered model, such as ``policy 0123456789ab``."""
    return f"{MODELS.get(model, model)} {digest[:12]}"


def is_learned(controller: str) -> bool:
    """Return whether the controller of a field report is a policy, alone or consulting Karn."""
    return controller == LEARNED or controller.startswith(_CONSULTING)


def short(text: str) -> str:
    """Return the beginning of a digest, which machines read in full; any other text, such as a name, unchanged."""
    return text[:SHORT] if _DIGEST.fullmatch(text) else text
