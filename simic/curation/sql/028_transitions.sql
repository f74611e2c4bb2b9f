-- Every report once, as (state, action, next state).
-- seeds: the living and fossilised seeds of the state, in the order of its slots; final_seeds: of the final state.
-- content_id: the first 128 bits of the content's digest.
-- grain:  one report
-- key:    place
-- inputs: reports, repetitions, retold; $least_log_prob
WITH told_once AS (
    SELECT
        report_id::UUID AS report_id,
        run_id::UUID AS run_id,
        step::INTEGER AS step,
        content_digest[1:32]::UUID AS content_id,
        place,
        hash(host."set", host.family, host.key, controller, coalesce(policy_version, '')) AS identity,
        state.horizon::INTEGER AS horizon,
        state.seeds_max::INTEGER AS seeds_max,
        state.validation_accuracy AS state_accuracy,
        list_transform(
            list_filter(state.slots, lambda slot: slot.stage NOT IN ('DORMANT', 'PRUNED', 'EMBARGOED', 'RESETTING')),
            lambda slot: {'stage': slot.stage::STAGE, 'contribution': slot.contribution, 'health': slot.gradient_health}
        ) AS seeds,
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
        issued_at
    FROM reports
    ANTI JOIN (FROM repetitions UNION ALL FROM retold) USING (place)
)

SELECT
    * EXCLUDE (final_accuracy, final_seeds),
    if(has_final_state, final_accuracy, lead(state_accuracy) OVER episode) AS next_accuracy,
    if(has_final_state, final_seeds, lead(seeds) OVER episode) AS next_seeds,
    lead(step) OVER episode AS next_step
FROM told_once
WINDOW episode AS (PARTITION BY run_id ORDER BY step, report_id)
