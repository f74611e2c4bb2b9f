-- Every landed row that is in no snapshot, with the reason.
-- grain:  one landed row
-- key:    none
-- inputs: repetitions, retold, transitions, episode_verdicts
SELECT
    report_id,
    run_id,
    step,
    reason
FROM repetitions
UNION ALL
SELECT
    report_id,
    run_id,
    step,
    reason
FROM retold
UNION ALL
SELECT
    report_id,
    run_id,
    step,
    reason
FROM transitions
INNER JOIN episode_verdicts USING (run_id)
WHERE reason IS NOT NULL
