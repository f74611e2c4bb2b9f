-- Every landed report as one flat row: who decided what on which host, and what came of it.
-- grain: one report; a step told again under another id has a row for each
-- key: report_id
-- inputs: internal.landed, internal.split_of
-- column run_id: The episode.
-- column step: From 0.
-- column report_id: The report behind the row.
-- column set: The world the host belongs to.
-- column family: The host's family.
-- column host_key: Fixes the host's data, weights and noise.
-- column split: train, validation or test, by the host's key.
-- column controller: Who decided.
-- column policy_version: Digest of the acting policy; null for a controller without weights.
-- column epoch: Epochs trained before the decision.
-- column horizon: Epochs of the whole episode.
-- column op: The operation chosen.
-- column slot: The slot it addressed, if any.
-- column blueprint: The blueprint of the seed it addressed, if any.
-- column stages: Stage of every slot before the decision.
-- column seeds_alive: Seeds alive or fossilised before the decision.
-- column accuracy_before: Validation accuracy before the window.
-- column accuracy_after: Validation accuracy after it; on the last step of the network to be kept.
-- column loss_before: Validation loss before the window.
-- column loss_after: Validation loss after it.
-- column test_accuracy: On the last step only; reported, never learned from.
-- column rent_parameters: Parameters of seeds alive or fossilised during the window.
-- column committed_parameters: Parameters of fossilised seeds after the window.
-- column outcome: How the window ended.
-- column governor: What the governor saw, if it ended the episode.
-- column terminated: The episode ended here by itself.
-- column truncated: The episode was cut off here.
-- column issued_at: When the report was made.
-- column landed_at: When it landed.
-- column source: The delivery it came in.
SELECT
    run_id,
    step,
    report_id,
    host."set" AS "set",
    host.family AS family,
    host.key AS host_key,
    internal.split_of(host."set", host.key) AS split,
    controller,
    policy_version,
    state.epoch AS epoch,
    state.horizon AS horizon,
    action.op AS op,
    action.slot AS slot,
    blueprint_id AS blueprint,
    list_transform(state.slots, lambda slot: slot.stage) AS stages,
    state.seeds_alive AS seeds_alive,
    metrics.validation_accuracy_before AS accuracy_before,
    metrics.validation_accuracy_after AS accuracy_after,
    metrics.validation_loss_before AS loss_before,
    metrics.validation_loss_after AS loss_after,
    metrics.test_accuracy AS test_accuracy,
    metrics.rent_parameters AS rent_parameters,
    metrics.committed_parameters AS committed_parameters,
    outcome,
    governor.kind AS governor,
    terminated,
    truncated,
    issued_at,
    landed_at,
    source
FROM internal.landed
