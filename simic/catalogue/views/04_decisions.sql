-- What was chosen, out of what, and how likely it was.
-- grain: one decision
-- key: run_id, step
-- inputs: internal.landed
-- column run_id: The episode.
-- column step: From 0.
-- column command_id: The decision, as the executor saw it.
-- column controller: Who decided.
-- column policy_version: Digest of the acting policy; null for a controller without weights.
-- column family: The host's family.
-- column host_key: Fixes the host's data, weights and noise.
-- column op: The operation chosen.
-- column slot: Null where it does not belong to the operation; likewise below.
-- column blueprint: The blueprint to germinate.
-- column alpha_target: Where a blend should end.
-- column alpha_speed: Epochs of the ramp.
-- column alpha_curve: Shape of the ramp.
-- column tempo: Epochs in isolation at most.
-- column seed_id: The seed it addressed.
-- column available: Operations that were legal.
-- column log_prob_op: Natural logarithm of the operation's probability.
-- column log_prob: Natural logarithm of the whole action's probability.
SELECT
    run_id,
    step,
    command_id,
    controller,
    policy_version,
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
