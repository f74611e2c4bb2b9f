"""Declarations of metrics: one each, with the design's names, and the page that is made from them."""

from __future__ import annotations

import re

from list_metrics import PAGE, page

from simic.contracts import metrics
from simic.contracts.metrics import METRICS, declared, exported_name

DESIGN = {
    *(
        f"simic.trainer.{name}"
        for name in (
            "policy_loss", "value_loss", "grad_norm", "training_time_ms", "vtrace_time_ms", "ewc_penalty",
            "curriculum_stage", "conservative_mode",
        )
    ),
    *(f"simic.buffer.{name}" for name in ("size", "memory_mb", "ttl_cleanups", "expired_removed")),
    *(f"simic.processor.{name}" for name in ("reports_processed", "reports_failed")),
    "simic.sampling.batch_time_ms",
}  # fmt: skip


def test_the_page_is_that_of_the_declarations() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python docs/scripts/list_metrics.py"


def test_every_name_of_the_design_is_that_of_one_metric() -> None:
    assert sorted(one.design for one in METRICS.values() if one.design) == sorted(DESIGN)


def test_a_metric_is_declared_once_and_its_exported_name_is_its_own() -> None:
    groups = [value for name, value in vars(metrics).items() if re.fullmatch(r"_[a-z_]+", name) and callable(value)]
    names = [one.name for group in groups for one in group()]
    assert sorted(names) == sorted(METRICS)
    exported = [exported_name(name) for name in METRICS]
    assert len(set(exported)) == len(exported)
    assert all(re.fullmatch(r"[a-z][a-z0-9_./-]{0,127}", name) for name in exported)


def test_a_metric_of_another_package_is_exported_under_the_trainer() -> None:
    assert declared("their_loss") is None
    assert exported_name("their_loss") == "simic.trainer.their_loss"
