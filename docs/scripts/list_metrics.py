"""Write metrics.md from the declarations of ``simic/contracts/metrics.py``: ``python docs/scripts/list_metrics.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simic.contracts.metrics import METRICS, PHASES, Metric, Origin

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[1] / "metrics.md"

_TITLE = """# Metrics of a training

`python docs/scripts/list_metrics.py` writes this page from `simic/contracts/metrics.py`, where every metric is declared
once; a test trains with every objective and refuses a metric that is not declared. Outside a training a metric has the
name of the [design](glossary.md#names-of-the-design), the last column, or `simic.trainer.<metric>`; in Prometheus dots
are underscores. The phase `imitation` is `train.objective = cloning`; the phase `cloning` is the behaviour cloning
before V-trace, PPO and AWR. Points are those of the reward, nats natural logarithms of probabilities, 1 a number
without unit.
"""
_SECTIONS = {
    Origin.UPDATE: (
        "Of every update",
        "In the curves (`data/curves/<policy>.jsonl`), and so in `simic sql` (view `curves`), in MLflow and in "
        "Prometheus. They depend on data, settings and seed alone: equal trainings have equal ones. A metric with "
        "something in the column *only with* is absent without it.",
    ),
    Origin.RESULT: (
        "Of a finished training",
        "In the report of the training (view `trainings`, column `metrics`), beside the means over the last pass of "
        "the metrics above.",
    ),
    Origin.CLOCK: (
        "Of the clock and the machine",
        "Different each time, so in no curve: in the packets (view `telemetry`) and in Prometheus. An ingestion writes "
        "its own to `data/runs/ingest/<UTC day>.jsonl` and `data/runs/metrics/ingest.prom`.",
    ),
}


def page() -> str:
    """Return the text of the page."""
    return "\n".join([_TITLE, *(line for origin in _SECTIONS for line in _section(origin))])


def _section(origin: Origin) -> Iterator[str]:
    title, text = _SECTIONS[origin]
    yield from (f"## {title}", "", text, "")
    yield "| metric | unit | meaning | phases | only with | in the design |"
    yield "|---|---|---|---|---|---|"
    yield from (_row(metric) for metric in METRICS.values() if metric.origin is origin)
    yield ""


def _row(metric: Metric) -> str:
    design = f"`{metric.design}`" if metric.design else ""
    phases = "all" if metric.phases == PHASES else ", ".join(metric.phases)
    meaning = metric.meaning.replace("|", r"\|")
    return f"| `{metric.name}` | {metric.unit} | {meaning} | {phases} | {metric.only_with} | {design} |"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
