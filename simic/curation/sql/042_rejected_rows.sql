-- Every landed row that the snapshot leaves out, with the reason.
-- grain:  one landed row
-- key:    none
-- inputs: repetitions, content_duplicates, transitions, episode_verdicts
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
FROM content_duplicates
UNION ALL
SELECT
    report_id,
    run_id,
    step,
    reason
FROM transitions
INNER JOIN episode_verdicts USING (run_id)
WHERE reason IS NOT NULL
