"""List the gate's criteria in trust.md, between its two markers: ``make criteria``.

Names come from the files of ``simic/validation/criteria``, texts from their ``SUMMARY``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simic.contracts.names import KARN, MODELS
from simic.validation.criteria import CRITERIA
from simic.validation.criterion import TRIALS
from simic.validation.promotion_gate import applied_criteria

__all__ = ["BEGIN", "END", "PAGE", "relisted"]

PAGE = Path(__file__).parents[1] / "trust.md"
BEGIN, END = "<!-- listed by docs/scripts/list_criteria.py -->", "<!-- end of the list -->"


def relisted(page: str) -> str:
    """Return the page with the list of the shipped criteria, in the order of a decision."""
    installed = set(CRITERIA.installed())
    shipped = [one for one in applied_criteria(()) if one.NAME not in installed]
    rows = [
        f"| `{one.NAME}` | {getattr(one, 'EVIDENCE', 'both')} | {_judged(one)} | {one.SUMMARY} |" for one in shipped
    ]
    before, _, rest = page.partition(BEGIN)
    table = "\n".join(["| criterion | evidence | judges | what must hold |", "|---|---|---|---|", *rows])
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def _judged(criterion: Any) -> str:
    """Return the models that a criterion judges; Karn is judged by trials alone."""
    is_for_karn = KARN in getattr(criterion, "MODELS", MODELS) and getattr(criterion, "EVIDENCE", TRIALS) == TRIALS
    return "policies, Karn" if is_for_karn else "policies"


if __name__ == "__main__":
    PAGE.write_text(relisted(PAGE.read_text("utf-8")), "utf-8")
