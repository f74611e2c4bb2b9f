-- What a learner is told, but for the states: those lie in the parts the snapshot holds, at the row that places.parquet
-- names. No column holds a wall-clock time: the same rows give the same bytes.
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: kept_steps
SELECT
    * EXCLUDE (episode, place) REPLACE (
        replace(run_id::VARCHAR, '-', '') AS run_id,
        step::BIGINT AS step,
        split::VARCHAR AS split,
        op::VARCHAR AS op,
        replace(report_id::VARCHAR, '-', '') AS report_id
    )
FROM (FROM kept_steps ORDER BY episode, step)
