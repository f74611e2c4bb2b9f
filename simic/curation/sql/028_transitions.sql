-- Every report once, as (state, action, next state), with what its episode had come to by then.
-- grain:  one report
-- key:    report_id
-- inputs: landed, repetitions, retold
WITH told_once AS (
    SELECT *
    FROM landed
    ANTI JOIN (FROM repetitions UNION ALL FROM retold) USING (report_id, landed_at, source, line)
)

SELECT
    report_id,
    run_id,
    step,
    identity,
    horizon,
    seeds_max,
    is_likely,
    op,
    has_governor,
    has_final_state,
    terminated,
    truncated,
    issued_at,
    accuracy_before,
    accuracy_after,
    rent_parameters,
    committed_parameters,
    test_accuracy,
    state_accuracy,
    seeds,
    if(has_final_state, final_accuracy, lead(state_accuracy) OVER episode) AS next_accuracy,
    if(has_final_state, final_seeds, lead(seeds) OVER episode) AS next_seeds,
    lead(step) OVER episode AS next_step,
    first_value(accuracy_before) OVER episode AS start_accuracy,
    sum(rent_parameters) OVER episode AS parameter_epochs
FROM told_once
WINDOW episode AS (PARTITION BY run_id ORDER BY step, report_id ROWS UNBOUNDED PRECEDING)
