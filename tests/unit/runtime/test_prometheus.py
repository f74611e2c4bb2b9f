"""The text for Prometheus, read back by its own client."""

from __future__ import annotations

import math
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from simic.runtime.prometheus import Sample, render, write_textfile

SAMPLES = [
    Sample("simic.trainer.policy_loss", 'The "loss"\nof C:\\x.', 0.1, {"phase": "vtrace"}),
    Sample("simic.buffer.size", "Steps.", 1e20),
    Sample("simic.trainer.policy_loss", "", -math.inf, {"phase": 'a"b\\c\nd'}),
    Sample("simic.trainer.nothing", "NaN.", math.nan),
]


def test_the_client_of_prometheus_reads_every_value_label_and_meaning() -> None:
    families = {family.name: family for family in text_string_to_metric_families(render(SAMPLES))}
    assert set(families) == {"simic_trainer_policy_loss", "simic_buffer_size", "simic_trainer_nothing"}
    loss = families["simic_trainer_policy_loss"]
    assert (loss.type, loss.documentation) == ("gauge", 'The "loss"\nof C:\\x.')
    assert [(one.labels, one.value, one.timestamp) for one in loss.samples] == [
        ({"phase": "vtrace"}, 0.1, None),
        ({"phase": 'a"b\\c\nd'}, -math.inf, None),
    ]
    assert families["simic_buffer_size"].samples[0].value == 1e20
    assert math.isnan(families["simic_trainer_nothing"].samples[0].value)


def test_the_file_is_replaced_and_leaves_nothing_that_a_collector_would_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "simic.prom"
    for samples in (SAMPLES, SAMPLES[:1]):
        write_textfile(path, samples)
    assert path.read_text() == render(SAMPLES[:1])
    assert list(path.parent.iterdir()) == [path]
