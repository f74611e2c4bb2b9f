-- All landed reports as flat rows: the host, the decision and its outcome.
-- grain: one report; a step that was reported under two ids has two rows
-- key: report_id
-- inputs: internal.landed, internal.split_of
-- column run_id: Id of the episode.
-- column step: Number of the decision in the episode, from 0.
-- column report_id: Id of the report.
-- column set: The host set.
-- column family: Family of the host.
-- column host_key: Key of the host, which determines its data, weights and noise.
-- column split: Data split of the host: train, validation or test.
-- column controller: Name of the acting controller.
-- column policy_version: Digest of the acting policy; null for a controller without weights.
-- column branch_of: Parent of a branch, the episode that it repeats up to branch_step; null in other episodes.
-- column branch_step: Step at which the action of a branch was enumerated, not chosen; null in other episodes.
-- column trial_id: Trial or comparison of judging experience, which no training uses; null in other episodes.
-- column judgement: Number of the judgement that the trial belongs to; null in a comparison and in other episodes.
-- column epoch: Number of epochs trained before the decision.
-- column horizon: Number of epochs of the whole episode.
-- column op: The chosen operation.
-- column slot: Slot that the operation addressed; null for WAIT.
-- column blueprint: Blueprint of the seed that the operation addressed; null for WAIT.
-- column stages: Stage of every slot before the decision.
-- column seeds_alive: Seeds alive or fossilised before the decision.
-- column accuracy_before: Validation accuracy before the window.
-- column accuracy_after: Validation accuracy after the window; on the last step, that of the network that is kept.
-- column loss_before: Validation loss before the window.
-- column loss_after: Validation loss after the window.
-- column test_accuracy: Test accuracy, on the last step only; no learner uses it.
-- column rent_parameters: Parameters of seeds alive or fossilised during the window.
-- column committed_parameters: Parameters of fossilised seeds after the window.
-- column outcome: How the window ended.
-- column governor: Failure that the governor detected, if it ended the episode.
-- column terminated: Whether the episode ended in this step.
-- column truncated: Whether the episode was cut off after this step.
-- column issued_at: Time at which the report was made.
-- column landed_at: Time at which the report landed.
-- column source: Delivery that contained the report.
-- column line: Number of the line in the delivery, from 1.
-- column correlation_id: Correlation id of the envelope of that report on the bus; null for a line without one.
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
    branch_of,
    branch_step,
    trial_id,
    judgement,
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
    source,
    line,
    correlation_id
FROM internal.landed
