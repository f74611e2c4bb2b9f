"""Checks that the fields of one report are consistent with each other.

Each check compares a field with others that determine it; every message reads ``field: expected X, found Y``. The
checks accept any object with the attributes of a ``FieldReport``. They are not part of its validation, so a
contradiction has a reason of its own, reported only if the report is otherwise valid.
"""

from __future__ import annotations

from collections.abc import Sequence

from simic.contracts.actions import OPS, ActionMasks, Op
from simic.contracts.field_report import FieldReport, Outcome
from simic.contracts.lifecycle import ALIVE_STAGES, TRANSITIONS, SeedStage, Trigger
from simic.contracts.names import is_learned
from simic.contracts.state import SMALL_LIMIT, SeedState, SystemState

__all__ = ["PAYING_STAGES", "TOLERANCE", "find_contradiction", "find_mask_contradiction"]

TOLERANCE = 1e-6
"""Largest difference between equal accuracies, and between equal losses relative to their size: they travel as float32.
Curation uses the same tolerance."""

# Every landed report passes these checks. Module-level names and tuples of enum members are used because looking a
# member up in its class, or hashing it, takes longer than comparing it.
_DORMANT, _HOLDING, _FOSSILIZED = SeedStage.DORMANT, SeedStage.HOLDING, SeedStage.FOSSILIZED
_ABORTED, _GERMINATE, _PRUNE, _FOSSILIZE = Outcome.ABORTED, Op.GERMINATE, Op.PRUNE, Op.FOSSILIZE
PAYING_STAGES = (*sorted(ALIVE_STAGES), _FOSSILIZED)
"""Stages of seeds that pay rent."""
_UNFELT = (SeedStage.GERMINATED, SeedStage.TRAINING, SeedStage.PRUNED, SeedStage.EMBARGOED, SeedStage.RESETTING)
"""Stages of a seed on which the host's output does not depend."""
_SOURCES: dict[Op, tuple[SeedStage, ...]] = {
    op: tuple(row.source for row in TRANSITIONS if row.trigger is Trigger.ACTION and row.op is op) for op in OPS
}
"""Stages from which each operation may start."""
_GERMINATION = OPS.index(_GERMINATE)
_ADDRESSING = tuple(index for index, op in enumerate(OPS) if op is not Op.WAIT)


def find_contradiction(report: FieldReport) -> str | None:
    """Return the first contradiction with expected and found values; None if the fields agree."""
    return (
        _of_policy(report)
        or _of_measurements(report)
        or _of_time(report)
        or _of_ending(report)
        or find_mask_contradiction(report.available)
        or _of_address(report)
        or _of_state("state", report.state)
        or (None if report.final_state is None else _of_state("final_state", report.final_state))
        or _of_parameters(report)
    )


def _mismatch(field: str, expected: object, found: object) -> str:
    return f"{field}: expected {expected}, found {found}"


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > TOLERANCE * max(1.0, abs(one))


def _of_policy(report: FieldReport) -> str | None:
    if report.policy_version is None and is_learned(report.controller):
        expected = f"the digest of the policy, because controller = {report.controller!r}"
        return _mismatch("policy_version", expected, "null")
    return None


def _of_measurements(report: FieldReport) -> str | None:
    metrics, state, final = report.metrics, report.state, report.final_state
    accuracy, loss = state.validation_accuracy, state.validation_loss
    if accuracy != metrics.validation_accuracy_before and _differ(accuracy, metrics.validation_accuracy_before):
        expected = f"state.validation_accuracy = {accuracy:.9g}"
        return _mismatch("metrics.validation_accuracy_before", expected, f"{metrics.validation_accuracy_before:.9g}")
    if loss != metrics.validation_loss_before and _differ(loss, metrics.validation_loss_before):
        expected = f"state.validation_loss = {loss:.9g}"
        return _mismatch("metrics.validation_loss_before", expected, f"{metrics.validation_loss_before:.9g}")
    if state.committed_validation_accuracy is not None:
        return _mismatch("state.committed_validation_accuracy", "null but in a final state", "a value")
    if final is None:
        if metrics.test_accuracy is not None:
            return _mismatch("metrics.test_accuracy", "null but on an episode's last report", "a value")
        return None
    committed = final.committed_validation_accuracy
    if committed is not None and _differ(committed, metrics.validation_accuracy_after):
        expected = f"final_state.committed_validation_accuracy = {committed:.9g}"
        return _mismatch("metrics.validation_accuracy_after", expected, f"{metrics.validation_accuracy_after:.9g}")
    return None


def _of_time(report: FieldReport) -> str | None:
    state, final, window = report.state, report.final_state, report.observation_window_epochs
    after = state.epoch + window
    if state.epoch < report.step:
        return _mismatch("state.epoch", f"at least one epoch per step = {report.step}", state.epoch)
    if after > state.horizon:
        expected = f"at most state.horizon - state.epoch = {state.horizon - state.epoch}"
        return _mismatch("observation_window_epochs", expected, window)
    if final is None:
        if after == state.horizon:
            return _mismatch("terminated", f"the episode's end after epoch {after}, its horizon", "neither end")
        return None
    may_be_short = report.governor is not None or report.truncated
    if final.epoch != after and not (may_be_short and state.epoch <= final.epoch < after):
        return _mismatch("final_state.epoch", f"state.epoch + observation_window_epochs = {after}", final.epoch)
    if final.horizon != state.horizon:
        return _mismatch("final_state.horizon", f"state.horizon = {state.horizon}", final.horizon)
    if len(final.slots) != len(state.slots):
        return _mismatch("final_state.slots", f"as many as in state = {len(state.slots)}", len(final.slots))
    return None


def _of_ending(report: FieldReport) -> str | None:
    if report.terminated and report.truncated:
        return _mismatch("truncated", "false where terminated", "both")
    if (report.outcome is _ABORTED) != (report.governor is not None):
        found = f"{report.outcome.value} {'without' if report.governor is None else 'with'} one"
        return _mismatch("outcome", "ABORTED exactly with a governor event", found)
    if report.mitigation and report.governor is None:
        return _mismatch("mitigation", "nothing without a governor event", f"{len(report.mitigation)} measures")
    if report.final_state is not None and report.branch_step is not None and report.branch_step > report.step:
        return _mismatch("branch_step", f"at most the last step of its episode = {report.step}", report.branch_step)
    return None


def find_mask_contradiction(masks: ActionMasks) -> str | None:
    """Return the first operation that the masks allow without anything to act on; None if there is none."""
    legal, slots = masks.op, masks.slot
    for index in _ADDRESSING:
        if legal[index] and True not in slots[index]:
            return _mismatch(f"available.op of {OPS[index].value}", "false where available.slot allows no slot", "true")
    if legal[_GERMINATION] and not masks.blueprint:
        return _mismatch("available.op of GERMINATE", "false without a blueprint in available.blueprint", "true")
    return None


def _of_address(report: FieldReport) -> str | None:
    """Return the seed that the action addresses; validation has ensured that the slot exists."""
    action, seed_id, blueprint_id = report.action, report.seed_id, report.blueprint_id
    if action.slot is None:
        if seed_id is not None or blueprint_id is not None:
            return _mismatch("seed_id and blueprint_id", f"null for {action.op.value}", "a seed")
        return None
    slot, op = report.state.slots[action.slot], action.op
    if slot.stage not in _SOURCES[op]:
        expected = f"{' or '.join(stage.value for stage in _SOURCES[op])} for {op.value}"
        return _mismatch(f"state.slots.{action.slot}.stage", expected, slot.stage.value)
    if seed_id is None or blueprint_id is None:
        missing = "seed_id" if seed_id is None else "blueprint_id"
        return _mismatch(missing, f"that of the seed which {op.value} addresses", "null")
    prefix = f"{report.run_id}/{action.slot}/"
    number = seed_id.removeprefix(prefix)
    if not (seed_id.startswith(prefix) and number.isascii() and number.isdigit()) or number[0] == "0":
        return _mismatch("seed_id", f"{prefix}<germination number from 1>", repr(seed_id))
    if op is _GERMINATE:
        if blueprint_id != action.blueprint:
            return _mismatch("blueprint_id", f"action.blueprint = {action.blueprint}", blueprint_id)
    elif blueprint_id != slot.blueprint:
        return _mismatch("blueprint_id", f"state.slots.{action.slot}.blueprint = {slot.blueprint}", blueprint_id)
    return None


def _of_state(name: str, state: SystemState) -> str | None:
    seeds = parameters = 0
    for index, slot in enumerate(state.slots):
        stage = slot.stage
        if stage is _DORMANT:
            if slot.alpha or slot.parameters:
                place, found = f"{name}.slots.{index}", f"alpha {slot.alpha} and {slot.parameters} parameters"
                return _mismatch(place, "alpha 0 and 0 parameters in stage DORMANT", found)
            continue
        if stage in PAYING_STAGES:
            seeds += 1
            parameters += slot.parameters
        if slot.alpha and stage in _UNFELT:
            return _mismatch(f"{name}.slots.{index}.alpha", f"0 in stage {stage.value}", slot.alpha)
        if stage is _HOLDING and (slot.alpha_target is None or _differ(slot.alpha_target, slot.alpha)):
            return _mismatch(
                f"{name}.slots.{index}.alpha", f"its target {slot.alpha_target} in stage HOLDING", slot.alpha
            )
    if state.seeds_alive != seeds:
        return _mismatch(
            f"{name}.seeds_alive", f"as many as its slots hold alive or fossilised = {seeds}", state.seeds_alive
        )
    if seeds > state.seeds_max:
        return _mismatch(f"{name}.seeds_alive", f"at most seeds_max = {state.seeds_max}", seeds)
    if state.seed_parameters != parameters:
        expected = f"the sum over its slots alive or fossilised = {parameters}"
        return _mismatch(f"{name}.seed_parameters", expected, state.seed_parameters)
    if state.epoch == 0 and state.train_loss is not None:
        return _mismatch(f"{name}.train_loss", "null before the first epoch", state.train_loss)
    history = state.validation_accuracy_history
    if history and history[-1] != state.validation_accuracy:
        return _of_history(f"{name}.validation_accuracy", history, state.validation_accuracy)
    history = state.validation_loss_history
    if history and history[-1] != state.validation_loss:
        return _of_history(f"{name}.validation_loss", history, state.validation_loss)
    history = state.train_loss_history
    if history and history[-1] != state.train_loss:
        return _of_history(f"{name}.train_loss", history, state.train_loss)
    return None


def _of_history(field: str, history: Sequence[float], present: float | None) -> str | None:
    if present is not None and not _differ(present, history[-1]):
        return None
    return _mismatch(f"{field}_history", f"{field} = {present} at its end", history[-1])


def _of_parameters(report: FieldReport) -> str | None:
    metrics, state, action = report.metrics, report.state, report.action
    op, slot = action.op, None if action.slot is None else state.slots[action.slot]
    if (mismatch := _of_rent(report, slot)) is not None:
        return mismatch
    kept = _kept(state) + (slot.parameters if slot is not None and op is _FOSSILIZE else 0)
    if metrics.committed_parameters != kept:
        expected = f"parameters of fossilised seeds after {op.value} = {kept}"
        return _mismatch("metrics.committed_parameters", expected, metrics.committed_parameters)
    if report.final_state is not None and (final_kept := _kept(report.final_state)) != kept:
        return _mismatch("final_state.slots", f"fossilised seeds of {kept} parameters", final_kept)
    return None


def _of_rent(report: FieldReport, slot: SeedState | None) -> str | None:
    state, rent, op = report.state, report.metrics.rent_parameters, report.action.op
    before = state.seed_parameters
    if report.observation_window_epochs > 1:  # seeds may end in a longer window
        seeds = min(state.seeds_max, len(state.slots))
        if rent <= seeds * SMALL_LIMIT:
            return None
        return _mismatch("metrics.rent_parameters", f"at most {seeds * SMALL_LIMIT} of {seeds} seeds", rent)
    least = before - slot.parameters if slot is not None and op is _PRUNE else before
    most = before + SMALL_LIMIT if op is _GERMINATE else before
    if not least <= rent <= most:
        expected = f"{least} to {most} after {op.value}, by state.seed_parameters"
        return _mismatch("metrics.rent_parameters", expected, rent)
    final = report.final_state  # the germinated seed stands in the next report otherwise, see EpisodeOrder
    if final is None or op is not _GERMINATE or report.action.slot is None or report.governor is not None:
        return None
    seed = final.slots[report.action.slot]
    if final.epoch > state.epoch and seed.stage in PAYING_STAGES and rent != before + seed.parameters:
        expected = f"state.seed_parameters and those of the germinated seed = {before + seed.parameters}"
        return _mismatch("metrics.rent_parameters", expected, rent)
    return None


def _kept(state: SystemState) -> int:
    kept = 0
    for slot in state.slots:
        if slot.stage is _FOSSILIZED:
            kept += slot.parameters
    return kept
