"""The model card of a policy or Karn: one page of Markdown that says what it is, from the receipts alone.

After Mitchell et al. 2019, "Model Cards for Model Reporting".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simic.contracts.names import CANDIDATE, MODELS, judged_name
from simic.contracts.results.karn import KarnReport
from simic.contracts.results.trials import TrialReport
from simic.registry.headline import share_of_oracle

if TYPE_CHECKING:
    from simic.registry.mlflow_run import CandidateRecord

__all__ = ["CARD_FILE", "model_card"]

CARD_FILE = "model_card.md"


_POLICY = (
    "A controller that decides, once per host and epoch, whether and how a neural network grows while it trains: "
    "germinate a seed, blend it in, keep or prune it, or wait."
)
_KARN = "It proposes which blueprint suits a slot of a neural network; a policy may consult it when a seed germinates."


def model_card(candidate: CandidateRecord) -> str:
    """Return the card of a judged policy or Karn; it names no path."""
    return "\n".join(
        [
            f"# {judged_name(candidate.gate.model, candidate.training.digest).capitalize()}",
            "",
            *_what(candidate),
            "",
            "## Trained on",
            "",
            *_experience(candidate),
            "",
            "## Judged",
            "",
            *_verdict(candidate),
            "",
            "## Figures",
            "",
            *_figures(candidate),
            "",
            "## Limits",
            "",
            *_limits(candidate),
            "",
            "## Licence",
            "",
            "None stated.",
            "",
        ]
    )


def _what(candidate: CandidateRecord) -> Iterator[str]:
    training, config = candidate.training, candidate.config
    is_karn = isinstance(training, KarnReport)
    yield _KARN if is_karn else _POLICY
    yield ""
    network = config.karn.network if is_karn else config.train.network
    yield f"- Digest: `{training.digest}`"
    yield f"- Network: {network.layers} rounds of message passing, {network.hidden} hidden units"
    if isinstance(training, KarnReport):
        yield f"- Judged with policy: `{candidate.gate.consulted_by}`"
    else:
        yield f"- Started from: {'none' if training.start_digest is None else f'`{training.start_digest}`'}"
    yield f"- Code {training.code_version}, configuration `{training.config_digest[:12]}`, seed {training.seed}"
    yield f"- Trained {training.finished_at:%Y-%m-%d %H:%M} UTC"


def _experience(candidate: CandidateRecord) -> Iterator[str]:
    training, snapshot = candidate.training, candidate.snapshot
    sets = ", ".join(training.sets) or "not recorded"
    counts = ", ".join(f"{count} {split}" for split, count in snapshot.episodes.items())
    rejected = ", ".join(f"{count} {reason}" for reason, count in sorted(snapshot.rejected.items())) or "none"
    yield f"- Snapshot `{snapshot.digest}`: {snapshot.rows_out} of {snapshot.rows_in} landed rows; episodes: {counts}"
    yield f"- Rows left out, by reason: {rejected}"
    yield f"- Host sets: {sets}; reward family {snapshot.reward_family}, discount {snapshot.gamma:g} per epoch"
    if isinstance(training, KarnReport):
        learned = f"{training.comparisons} comparisons of blueprints, {training.germinations} single germinations"
    else:
        learned = f"Learned from {training.episodes} of the training episodes, {training.passes:.3g} passes over each"
    yield f"- {learned}, {training.updates} updates"
    yield '- `simic sql "SELECT * FROM trainings"` lists the snapshots of earlier rounds'


def _verdict(candidate: CandidateRecord) -> Iterator[str]:
    gate, report = candidate.gate, candidate.validation
    hosts = f"{report.hosts} held-out hosts of set {report.trials.set} that no policy was trained"
    hosts += " or judged on before" if report.evidence == "trials" else " on, from logged episodes; no host was grown"
    champion = "no champion" if gate.champion_digest is None else f"champion `{gate.champion_digest[:12]}`"
    yield (
        f"{'Accepted' if gate.accepted else 'Rejected'} on {gate.finished_at:%Y-%m-%d} in judgement "
        f"{gate.judgement.ordinal} of its home, against {champion}, on {hosts}. Gate decision `{gate.digest}`."
    )
    yield ""
    yield "| criterion | value | bound | verdict | evidence |"
    yield "| --- | --- | --- | --- | --- |"
    for criterion in gate.criteria:
        value = "none" if criterion.value is None else f"{criterion.value:.4g}"
        evidence_cell = criterion.evidence.replace("|", "\\|")
        yield (
            f"| {criterion.name} | {value} | {criterion.comparison} {criterion.bound:.4g} "
            f"| {criterion.verdict.value} | {evidence_cell} |"
        )


def _figures(candidate: CandidateRecord) -> Iterator[str]:
    report = candidate.validation
    kind = (
        "Paired differences of returns per host" if report.evidence == "trials" else "Differences estimated from a log"
    )
    yield f"{kind}; a point is one percentage point of validation accuracy:"
    yield ""
    yield "| candidate minus | mean | lower | upper | hosts |"
    yield "| --- | --- | --- | --- | --- |"
    for name, estimate in report.differences.items():
        yield f"| {name} | {estimate.mean:.3g} | {estimate.lower:.3g} | {estimate.upper:.3g} | {estimate.n} |"
    if (share := share_of_oracle(report.trials)) is not None:
        yield ""
        yield f"Share of the oracle's gain over never growing: {share:.0%}."
    for further in report.further:
        yield ""
        hosts = f"{len(further.host_keys)} held-out hosts of set {further.set}"
        yield f"Gain over never growing on {hosts}: {_gain(further)}."


def _gain(further: TrialReport) -> str:
    gain = next((trial.over_wait for trial in further.controllers if trial.controller == CANDIDATE), None)
    return "not measured" if gain is None else f"{gain.mean:.3g} [{gain.lower:.3g}, {gain.upper:.3g}]"


def _limits(candidate: CandidateRecord) -> Iterator[str]:
    log = candidate.validation.log
    judged = " and ".join([candidate.validation.trials.set, *(further.set for further in candidate.validation.further)])
    is_logged = candidate.validation.evidence == "reports"
    horizons = [candidate.config.world.horizon] if not is_logged else [] if log is None else log.horizons
    epochs = ", ".join(map(str, horizons)) or "unknown"
    yield f"- Judged on hosts of {judged} with {epochs} epochs; nothing is known of it elsewhere."
    if is_logged:
        yield "- No trial: its return is estimated from actions that other controllers took and reported."
        yield "- Nothing is known of actions that the log lacks, nor of accuracy, panics or reward hacking of its own."
    if candidate.gate.absent:
        yield f"- Criteria that did not apply: {', '.join(candidate.gate.absent)}."
    yield "- It knows the blueprints of its sealed card and chooses no other one."
    yield "- Differences are means over hosts: single hosts can be worse off than without growth."
    yield f"- {_seeds(candidate)} Another seed gives another {MODELS[candidate.gate.model]}."


def _seeds(candidate: CandidateRecord) -> str:
    """Return how many training seeds there were, and how this one was chosen among several."""
    choice, configured = candidate.choice, candidate.config.train.seeds
    if isinstance(candidate.training, KarnReport) or (choice is None and configured == 1):
        return "One training seed."
    if choice is None:
        return f"`train.seeds` is {configured}, and no receipt says that this policy was chosen among as many."
    stopped = f" ({len(choice.stopped)} ended early as hopeless)" if choice.stopped else ""
    return (
        f"{len(choice.seeds) + len(choice.stopped)} training seeds{stopped}: the policy of seed {choice.training_seed} "
        f"was chosen because it gained most over never growing on {choice.hosts} validation hosts of set {choice.set}. "
        f"The gains there are {choice.least:+.1f} to {choice.greatest:+.1f} points; the greatest of several promises "
        "more than new hosts show."
    )
