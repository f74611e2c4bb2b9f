-- Flat columns of every landed report, repetitions included.
-- grain:  one landed row
-- key:    none
-- inputs: reports (the parts that the ledger lists)
SELECT
    report_id,
    run_id,
    step,
    host."set" AS "set",
    host.family AS family,
    host.key AS host_key,
    controller,
    policy_version,
    state.epoch AS epoch,
    state.horizon AS horizon,
    state.validation_accuracy AS state_accuracy,
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
