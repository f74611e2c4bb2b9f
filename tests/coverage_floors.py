"""Floors of the measured coverage, and the recorded figure below which no full run may fall.

`make coverage` holds a run of the whole suite against them. After a run that covers more, record its figures:

    python tests/coverage_floors.py --record
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from coverage import Coverage

__all__ = ["COMPLETE", "LINES", "RECORD", "Figures", "figures", "problems", "read_record", "read_report"]

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "coverage.json"
"""The greatest figures that a full run has had."""

LINES = 95.0
"""Percent of all lines."""
BRANCHES = 85.0
"""Percent of all branches."""
COMPLETE = ("simic/contracts/", "simic/numerics/", "simic/validation/promotion_gate.py", "simic/validation/criteria/")
"""Files whose every line is covered: what crosses a boundary, what computes, what decides."""
TOLERANCE = 0.2
"""Points below the record that are still accepted: whether a killed process saved its figures, and which of two
processes waits at a lock, differ from run to run."""


class Figures(NamedTuple):
    """Percent of lines and of branches that a run covered."""

    lines: float
    branches: float


def read_report(config_file: Path = ROOT / "pyproject.toml") -> dict[str, Any]:
    """Return coverage's own report of the last run that followed ``config_file``, file by file."""
    measured = Coverage(config_file=str(config_file))
    measured.load()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        measured.json_report(outfile=str(out))
        report: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return report


def figures(report: Mapping[str, Any]) -> Figures:
    """Return the shares of all lines and of all branches."""
    totals = report["totals"]
    return Figures(
        100.0 * totals["covered_lines"] / max(1, totals["num_statements"]),
        100.0 * totals["covered_branches"] / max(1, totals["num_branches"]),
    )


def problems(report: Mapping[str, Any], record: Figures | None) -> list[str]:
    """Return a line for each floor that a report falls below."""
    found = figures(report)
    lines = []
    for name, share, floor in zip(Figures._fields, found, (LINES, BRANCHES), strict=True):
        if share < floor:
            lines.append(f"{name}: {share:.2f} % are covered, expected at least {floor:g} %")
        if record is not None and share < getattr(record, name) - TOLERANCE:
            lines.append(f"{name}: {share:.2f} % are covered, expected the recorded {getattr(record, name):.2f} %")
    for path, measured in sorted(report["files"].items()):
        if Path(path).as_posix().startswith(COMPLETE) and measured["missing_lines"]:
            missing = ", ".join(map(str, measured["missing_lines"]))
            lines.append(f"{path}: every line must be covered, lines {missing} are not")
    return lines


def read_record(path: Path = RECORD) -> Figures | None:
    """Return the recorded figures, or None before there are any."""
    return Figures(**json.loads(path.read_text("utf-8"))) if path.exists() else None


def main() -> int:
    """Print the figures of the last run and what is wrong with them; with ``--record``, keep figures that rose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the figures of the last run, where they rose")
    wants_record = parser.parse_args().record
    report, record = read_report(), read_record()
    found, wrong = figures(report), problems(report, record)
    print(f"lines {found.lines:.2f} %, branches {found.branches:.2f} %", *wrong, sep="\n")
    if wants_record and not wrong:
        kept = found if record is None else Figures(*map(max, found, record))
        RECORD.write_text(json.dumps({name: round(share, 2) for name, share in kept._asdict().items()}) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
