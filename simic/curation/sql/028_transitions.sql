-- Every report once, as a transition (state, action, next state).
-- seeds: live and fossilised seeds of the state, in the order of its slots; final_seeds: those of the final state.
-- skips_epochs: whether the next state is not the one at the end of this step's window.
-- pays_for_another: whether a seed that germinated in this step, of one epoch, has other parameters in the next state
-- than it paid rent for; null if it did not live on.
-- identity: hash of what all reports of one episode share, a branch's parent and step included.
-- is_judging: whether the report is judging experience, of a trial or comparison.
-- size_bytes: 8 bytes per value of the state and its masks, without compression.
-- content_id: the first 128 bits of the content's digest.
-- grain:  one report
-- key:    row_id
-- inputs: reports, repetitions, content_duplicates; $least_log_prob
WITH deduplicated AS (
    SELECT
        report_id::UUID AS report_id,
        run_id::UUID AS run_id,
        step::INTEGER AS step,
        content_digest[1:32]::UUID AS content_id,
        row_id,
        hash(
            host."set", host.family, host.key, controller, coalesce(policy_version, ''),
            coalesce(branch_of, ''), coalesce(branch_step, -1), state.seeds_max
        ) AS identity,
        trial_id IS NOT NULL AS is_judging,
        state.horizon::INTEGER AS horizon,
        state.epoch::INTEGER AS epoch,
        state.epoch::INTEGER + observation_window_epochs::INTEGER AS end_epoch,
        state.seeds_max::INTEGER AS seeds_max,
        state.validation_accuracy AS state_accuracy,
        list_transform(
            list_filter(state.slots, lambda slot: slot.stage NOT IN ('DORMANT', 'PRUNED', 'EMBARGOED', 'RESETTING')),
            lambda slot: {'stage': slot.stage::STAGE, 'contribution': slot.contribution, 'health': slot.gradient_health}
        ) AS seeds,
        list_transform(
            state.slots,
            lambda slot: CASE
                WHEN slot.stage NOT IN ('DORMANT', 'PRUNED', 'EMBARGOED', 'RESETTING') THEN slot.parameters
            END
        ) AS slot_parameters,
        CASE WHEN action.op = 'GERMINATE' AND observation_window_epochs = 1 THEN action.slot END AS germinated_slot,
        metrics.rent_parameters - state.seed_parameters AS germinated_parameters,
        final_state.validation_accuracy AS final_accuracy,
        list_transform(
            list_filter(
                final_state.slots, lambda slot: slot.stage NOT IN ('DORMANT', 'PRUNED', 'EMBARGOED', 'RESETTING')
            ),
            lambda slot: {'stage': slot.stage::STAGE, 'contribution': slot.contribution, 'health': slot.gradient_health}
        ) AS final_seeds,
        log_prob_behaviour.joint >= $least_log_prob AS is_likely,
        action.op::OPERATION AS op,
        metrics.validation_accuracy_before AS accuracy_before,
        metrics.validation_accuracy_after AS accuracy_after,
        metrics.rent_parameters AS rent_parameters,
        metrics.committed_parameters AS committed_parameters,
        metrics.test_accuracy AS test_accuracy,
        governor IS NOT NULL AS has_governor,
        final_state IS NOT NULL AS has_final_state,
        terminated,
        truncated,
        issued_at,
        8 * (
            64 + 21 * len(state.slots) + 7 * len(state.graph.layers)
            + 2 * (len(state.graph.connects) + len(state.graph.monitors))
        ) AS size_bytes
    FROM reports
    ANTI JOIN (FROM repetitions UNION ALL FROM content_duplicates) USING (row_id)
)

SELECT
    * EXCLUDE (
        final_accuracy, final_seeds, epoch, end_epoch, slot_parameters, germinated_slot, germinated_parameters
    ),
    if(has_final_state, final_accuracy, lead(state_accuracy) OVER episode) AS next_accuracy,
    if(has_final_state, final_seeds, lead(seeds) OVER episode) AS next_seeds,
    lead(step) OVER episode AS next_step,
    lead(epoch) OVER episode <> end_epoch AS skips_epochs,
    (lead(slot_parameters) OVER episode)[germinated_slot + 1] <> germinated_parameters AS pays_for_another
FROM deduplicated
WINDOW episode AS (PARTITION BY run_id ORDER BY step, report_id)
