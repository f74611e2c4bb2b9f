-- All decisions: the chosen action, the legal operations and the log-probabilities.
-- grain: one report; a step that was reported under two ids has two rows
-- key: report_id
-- inputs: internal.landed
-- column run_id: Id of the episode.
-- column step: Number of the decision in the episode, from 0.
-- column report_id: Id of the report.
-- column command_id: Id of the decision.
-- column controller: Name of the acting controller.
-- column policy_version: Digest of the acting policy; null for a controller without weights.
-- column branch_of: Parent of a branch, the episode that it repeats up to branch_step; null in other episodes.
-- column branch_step: Step at which the action of a branch was enumerated, not chosen; null in other episodes.
-- column trial_id: Trial or comparison of judging experience, which no training uses; null in other episodes.
-- column judgement: Number of the judgement that the trial belongs to; null in a comparison and in other episodes.
-- column family: Family of the host.
-- column host_key: Key of the host, which determines its data, weights and noise.
-- column op: The chosen operation.
-- column slot: Slot of the operation. This and the next five columns are null if the operation does not use them.
-- column blueprint: Blueprint to germinate.
-- column alpha_target: Value that alpha moves to.
-- column alpha_speed: Number of epochs of the ramp.
-- column alpha_curve: Shape of the ramp.
-- column tempo: Largest number of epochs of training in isolation.
-- column seed_id: Id of the addressed seed.
-- column available: Legal operations.
-- column log_prob_op: Natural logarithm of the operation's probability.
-- column log_prob: Natural logarithm of the whole action's probability.
SELECT
    run_id,
    step,
    report_id,
    command_id,
    controller,
    policy_version,
    branch_of,
    branch_step,
    trial_id,
    judgement,
    host.family AS family,
    host.key AS host_key,
    action.op AS op,
    action.slot AS slot,
    action.blueprint AS blueprint,
    action.alpha_target AS alpha_target,
    action.alpha_speed AS alpha_speed,
    action.alpha_curve AS alpha_curve,
    action.tempo AS tempo,
    seed_id,
    list_where(
        ['WAIT', 'GERMINATE', 'SET_ALPHA_TARGET', 'ADVANCE', 'FOSSILIZE', 'PRUNE'], landed.available.op
    ) AS available,
    log_prob_behaviour.op AS log_prob_op,
    log_prob_behaviour.joint AS log_prob
FROM internal.landed
