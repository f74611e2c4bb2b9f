-- What decides over a landed report, repetitions included; ids as 16 bytes, since every row is held at once.
-- seeds: the living and fossilised seeds of the state, in the order of its slots; final_seeds: of the final state.
-- grain:  one landed row
-- key:    report_id, landed_at, source, line
-- inputs: reports (the parts that the ledger lists); $least_log_prob
SELECT
    report_id::UUID AS report_id,
    run_id::UUID AS run_id,
    step::INTEGER AS step,
    hash(host."set", host.family, host.key, controller, coalesce(policy_version, '')) AS identity,
    state.horizon::INTEGER AS horizon,
    state.seeds_max::INTEGER AS seeds_max,
    state.validation_accuracy AS state_accuracy,
    list_transform(
        list_filter(state.slots, lambda slot: slot.stage NOT IN ('DORMANT', 'PRUNED', 'EMBARGOED', 'RESETTING')),
        lambda slot: {'stage': slot.stage, 'contribution': slot.contribution, 'health': slot.gradient_health}
    ) AS seeds,
    final_state.validation_accuracy AS final_accuracy,
    list_transform(
        list_filter(final_state.slots, lambda slot: slot.stage NOT IN ('DORMANT', 'PRUNED', 'EMBARGOED', 'RESETTING')),
        lambda slot: {'stage': slot.stage, 'contribution': slot.contribution, 'health': slot.gradient_health}
    ) AS final_seeds,
    log_prob_behaviour.joint >= $least_log_prob AS is_likely,
    action.op AS op,
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
    landed_at,
    source,
    line
FROM reports
