-- The steps without their states, which lie in the linked parts at the row that row_index.parquet names. No column
-- holds a wall-clock time, so the same rows give the same bytes.
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: kept_steps
SELECT
    * EXCLUDE (episode, row_id) REPLACE (
        replace(run_id::VARCHAR, '-', '') AS run_id,
        step::BIGINT AS step,
        split::VARCHAR AS split,
        op::VARCHAR AS op,
        replace(report_id::VARCHAR, '-', '') AS report_id
    )
FROM (FROM kept_steps ORDER BY episode, step)
