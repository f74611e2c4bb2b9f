"""Differences between MLflow and the ledgers. Pure functions; each difference names both sides.

The journal of promotions decides who is champion and by which decision; the ledger of candidates says what was
recorded. Aliases, tags, names of runs and the description of the experiment are derived from them, for people.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from simic.contracts.errors import IntegrityError
from simic.contracts.names import CANDIDATE, CHAMPION, STAGED
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers import POLICIES_LEDGER, PROMOTIONS_LEDGER
from simic.ledgers.promotions import History, Operation, PromotionEntry
from simic.registry.ledger_records import LedgerRecords, unlisted_message
from simic.registry.mlflow_run import RunLabel, restore_run_hint
from simic.registry.models import Registered, Shown
from simic.registry.version_status import STATUS_TAG, run_name, status_of, wanted_tags

__all__ = [
    "REPAIR",
    "Difference",
    "champion_differences",
    "check_listed",
    "differences",
    "differing_tags",
    "journal_cut",
    "label_differences",
    "registered_as",
    "tag_differences",
    "unlisted",
    "wanted_aliases",
    "wanted_labels",
]

REPAIR = "`simic doctor --repair` restores what the journal says"
_PAST = {Operation.STAGE: STAGED, Operation.PROMOTE: "promoted", Operation.ROLLBACK: "rolled back to"}


class Difference(NamedTuple):
    """One finding of the doctor."""

    text: str
    """Both sides, and the command that repairs the difference."""
    is_repairable: bool
    """Whether MLflow can be set from the ledgers without losing anything."""
    lets_repair_go_on: bool = False
    """Whether other differences are repaired although this one stays; true for display only, such as a deleted run."""
    is_note: bool = False
    """Whether it is reported and is no finding: it is gone for good, and the ledgers hold what it decided."""


def differing_tags(version: Registered, wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the wanted tags that the version lacks or shows with another value."""
    return {key: value for key, value in wanted.items() if version.tags.get(key) != value}


def tag_differences(records: LedgerRecords, version: Registered) -> Iterator[str]:
    """Yield each tag of a version that differs from the ledgers; none while the version is being moved."""
    begun = records.history.open_entry
    if begun is not None and version.number in (begun.target, begun.source):
        return
    for key, value in differing_tags(version, wanted_tags(records, version.number, version.tags)).items():
        shown, expected = (repr(side) if side is not None else "none" for side in (version.tags.get(key), value))
        yield (
            f"MLflow shows the tag {key} of {version.name} version {version.number} as {shown}, the ledger says "
            f"{expected}; {REPAIR}"
        )
    recorded = records.candidates.get(version.number)
    if recorded is not None and recorded.mlflow_run_id != version.run_id:
        yield (
            f"MLflow shows {version.name} version {version.number} in run {version.run_id}, the ledger of candidates "
            f"in run {recorded.mlflow_run_id}; restore MLflow's database from a backup"
        )


def wanted_labels(records: LedgerRecords) -> dict[str, RunLabel]:
    """Return the expected name and status of the run of every listed version, by run id."""
    labels: dict[str, RunLabel] = {}
    for number, recorded in records.candidates.items():
        if (status := status_of(records, number)) is not None:
            name = run_name(recorded.semantic_version, recorded.digest, status)
            labels[recorded.mlflow_run_id] = RunLabel(name, status.value)
    return labels


def label_differences(
    records: LedgerRecords, labels: Mapping[str, RunLabel], cut_short: Collection[str] = ()
) -> Iterator[Difference]:
    """Yield each run that is deleted or purged, or whose name or status differs from the ledgers.

    Names of the two runs of a move in progress are left out, and so are deleted runs that no ledger lists.

    Args:
        records: The ledgers.
        labels: Every run of the experiment, deleted ones too.
        cut_short: Runs of versions whose recording was cut short; they are not listed yet.
    """
    for recorded in records.candidates.values():
        is_decided = recorded.gate_digest in records.accepted
        if (lost := _lost_run(recorded, labels, is_decided=is_decided)) is not None:
            yield lost
    begun = records.history.open_entry
    moving = set() if begun is None else {begun.target, begun.source}
    wanted = wanted_labels(records)
    left_out = {recorded.mlflow_run_id for number, recorded in records.candidates.items() if number in moving}
    for run_id, label in labels.items():
        expected = wanted.get(run_id)
        if run_id in left_out or label.is_deleted or label == expected:
            continue
        if expected is None and (label.status is None or run_id in cut_short):
            continue
        if expected is None:
            text = f"MLflow shows run {run_id} as {_label(label)}, but the ledger of candidates does not list that run"
            text = f"{text}; delete the run in MLflow, or its tag {STATUS_TAG}"
            yield Difference(text, is_repairable=False, lets_repair_go_on=True)
        else:
            text = f"MLflow shows run {run_id} as {_label(label)}, the ledgers say {_label(expected)}"
            yield Difference(f"{text}; {REPAIR}", is_repairable=True)


def _lost_run(recorded: PolicyVersion, labels: Mapping[str, RunLabel], *, is_decided: bool) -> Difference | None:
    """Return the difference for a listed version whose run is not in MLflow's list of runs; None if it is there.

    A purged run is a note if the gate decision on the version is on record (``is_decided``): the run only displayed
    that decision. The files of the version are not in the run and are verified separately.
    """
    run_id = recorded.mlflow_run_id
    which = f"run {run_id} of {recorded.name} version {recorded.number}"
    if run_id not in labels:
        held = "the ledgers hold the version and its gate decision; the curves and tables of the run are gone"
        text = f"MLflow has no {which}: it was purged; "
        text += held if is_decided else "restore MLflow's database from a backup"
        return Difference(text, is_repairable=False, lets_repair_go_on=True, is_note=is_decided)
    if labels[run_id].is_deleted:
        text = f"MLflow shows {which} as deleted; {restore_run_hint(run_id)}"
        return Difference(text, is_repairable=False, lets_repair_go_on=True)
    return None


def _label(label: RunLabel) -> str:
    return f"{label.name!r} with standing {label.status}"


def alias_difference(history: History, shown: Shown) -> str | None:
    """Return how MLflow's champion alias differs from the journal; during a move either version is right."""
    number, champion, begun = shown.aliases.get(CHAMPION), history.champion, history.open_entry
    expected = None if champion is None else champion.target
    is_moving = begun is not None and begun.operation is not Operation.STAGE and number == begun.target
    if number == expected or is_moving:
        return None
    claim = "names no champion" if champion is None else f"says version {expected}{_by(champion)}"
    return f"MLflow's alias {CHAMPION} is on {_version(number)}, but {PROMOTIONS_LEDGER} {claim}; {REPAIR}"


def staged_difference(history: History, shown: Shown) -> str | None:
    """Return how MLflow's alias ``staged`` differs from the journal; None also while an entry is open."""
    number, staged = shown.aliases.get(STAGED), history.staged
    if history.open_entry is not None or number == (None if staged is None else staged.target):
        return None
    claim = "stages no version" if staged is None else f"says version {staged.target}{_by(staged)}"
    return f"MLflow's alias {STAGED} is on {_version(number)}, but {PROMOTIONS_LEDGER} {claim}; {REPAIR}"


def unknown_promotions(history: History, shown: Shown) -> list[int]:
    """Return versions that MLflow shows as promoted without an entry in the journal, whose end may be cut off."""
    begun = history.open_entry
    known = {entry.target for entry in history.done} | ({begun.target} if begun is not None else set())
    return [
        number for number, version in shown.versions.items() if "promoted_at" in version.tags and number not in known
    ]


def champion_differences(records: LedgerRecords, shown: Shown) -> Iterator[str]:
    """Yield every difference about the champion."""
    if (difference := alias_difference(records.history, shown)) is not None:
        yield difference
    for number in unknown_promotions(records.history, shown):
        yield (
            f"MLflow shows that {records.history.model} version {number} was promoted at "
            f"{shown.versions[number].tags['promoted_at']}, but {PROMOTIONS_LEDGER} does not know of it: the last "
            f"lines of the journal are missing, or the tag was added by hand. `simic doctor` says which; with --repair "
            f"it removes such a tag"
        )
    champion = records.history.champion
    if champion is not None:
        yield from tag_differences(records, shown.version(champion.target))


def differences(
    records: LedgerRecords, shown: Shown, update_digests: Collection[str] = (), cut_short: Collection[int] = ()
) -> list[Difference]:
    """Return every alias and tag in MLflow that differs from the ledgers.

    Args:
        records: The ledgers.
        shown: All versions.
        update_digests: Policy digests named by signed updates in the outbox.
        cut_short: Unlisted versions whose recording was cut short.
    """
    cut = journal_cut(records, shown, update_digests)
    problems = [Difference(cut, is_repairable=False)] if cut else []
    if cut is None and (text := alias_difference(records.history, shown)) is not None:
        problems.append(Difference(text, is_repairable=True))
    if cut is None and (text := staged_difference(records.history, shown)) is not None:
        problems.append(Difference(text, is_repairable=True))
    for number in unlisted(records, shown):
        if number not in cut_short:
            problems.append(Difference(unlisted_message(records.history.model, number), is_repairable=False))
    candidate, wanted = shown.aliases.get(CANDIDATE), wanted_aliases(records)[CANDIDATE]
    if wanted is not None and candidate != wanted:
        text = f"MLflow's alias {CANDIDATE} is on {_version(candidate)}, the ledger of candidates ends with version "
        problems.append(Difference(f"{text}{wanted}; {REPAIR}", is_repairable=True))
    for number in sorted(records.candidates.keys() - shown.versions.keys()):
        text = f"the ledger of candidates lists {records.history.model} version {number}, which MLflow does not have; "
        problems.append(Difference(f"{text}restore its database from a backup", is_repairable=False))
    for version in shown.versions.values():
        wrong = differing_tags(version, wanted_tags(records, version.number, version.tags))
        texts = list(tag_differences(records, version))
        problems += [Difference(text, is_repairable=cut is None) for text in texts[: len(wrong)]]
        problems += [Difference(text, is_repairable=False) for text in texts[len(wrong) :]]
    return problems


def wanted_aliases(records: LedgerRecords) -> dict[str, int | None]:
    """Return the expected version of each alias; ``candidate`` belongs on the version that was judged last."""
    champion, staged = records.history.champion, records.history.staged
    return {
        CHAMPION: None if champion is None else champion.target,
        STAGED: None if staged is None else staged.target,
        CANDIDATE: records.newest,
    }


def unlisted(records: LedgerRecords, shown: Shown) -> list[int]:
    """Return versions that MLflow has and the ledger of candidates lacks."""
    return sorted(shown.versions.keys() - records.candidates.keys())


def journal_cut(records: LedgerRecords, shown: Shown, update_digests: Collection[str] = ()) -> str | None:
    """Return how it is known that the journal lost lines; None if nothing indicates that.

    Two things do: a signed update names a policy that the journal never promoted (``update_digests``), or MLflow shows
    a promotion that the journal lacks, of a version that is MLflow's champion or that the gate accepted. On any other
    version the tag was added by hand.
    """
    backup = f"the last lines of the journal are missing; restore it and {POLICIES_LEDGER} from a backup"
    if lost := sorted(set(update_digests) - {entry.digest for entry in records.history.done}):
        return (
            f"a signed update in the outbox makes policy {lost[0]} champion, but {PROMOTIONS_LEDGER} does not know of "
            f"that promotion: {backup}"
        )
    for number in unknown_promotions(records.history, shown):
        version, recorded = shown.versions[number], records.candidates.get(number)
        digests = {version.tags.get("digest"), None if recorded is None else recorded.digest}
        is_champion = shown.aliases.get(CHAMPION) == number
        if is_champion or not records.passed.isdisjoint(digests):
            which = "MLflow's champion is" if is_champion else "the gate accepted"
            return (
                f"{which} version {number}, promoted at {version.tags['promoted_at']}, but {PROMOTIONS_LEDGER} does "
                f"not know of that promotion: {backup}. If you know that it was never promoted, take the tag "
                f"promoted_at away from it in MLflow instead"
            )
    return None


def _by(entry: PromotionEntry) -> str:
    return f" ({_PAST[entry.operation]} {entry.at.isoformat()}, gate decision {entry.version.gate_digest[:12]})"


def _version(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"


def check_listed(records: LedgerRecords, shown: Shown, digest: str, tags: Mapping[str, str]) -> None:
    """Raise IntegrityError unless every listed version matches the ledgers.

    The version of policy ``digest`` may have some of ``tags`` already: a process that was killed while recording left
    them.
    """
    texts: list[str] = []
    for number, recorded in records.candidates.items():
        if (version := shown.versions.get(number)) is None:
            continue
        if recorded.digest == digest and records.history.promotion_of(number) is None:
            wanted = wanted_tags(records, version.number, version.tags)
            begun = {key for key, tag in tags.items() if version.tags.get(key) == tag}
            former = {key: value for key, value in wanted.items() if key in begun and value is not None}
            version = version._replace(tags={**version.tags, **former})
        texts += tag_differences(records, version)
    if texts:
        raise IntegrityError("; ".join(texts))


def registered_as(digest: str, records: LedgerRecords, shown: Shown, run_id: str | None = None) -> Registered | None:
    """Return the version of a sealed policy, if it was recorded.

    Raises:
        IntegrityError: MLflow and the ledger differ, or an unlisted version is in another run than ``run_id``.
    """
    version = shown.by_digest(digest)
    listed = next((number for number, known in records.candidates.items() if known.digest == digest), None)
    if listed is not None and (version is None or version.number != listed):
        other = "no version" if version is None else f"version {version.number}"
        raise IntegrityError(
            f"the ledger of candidates says that version {listed} holds policy {digest}, MLflow says {other}; {REPAIR}"
        )
    if version is not None and listed is None and run_id is not None and version.run_id != run_id:
        raise IntegrityError(
            f"MLflow shows policy {digest} as version {version.number} in run {version.run_id}, its recording is in "
            f"run {run_id}, and the ledger of candidates does not list it: it was not made by Simic; remove that "
            f"version from MLflow, and record the policy again"
        )
    return version
