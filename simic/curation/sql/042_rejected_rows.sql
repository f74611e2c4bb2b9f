-- Every landed row that the snapshot leaves out, with the reason.
-- grain:  one landed row
-- key:    none
-- inputs: repetitions, content_duplicates, transitions, episode_verdicts, reports
WITH left_out AS (
    SELECT
        report_id,
        run_id,
        step,
        row_id,
        reason
    FROM repetitions
    UNION ALL
    SELECT
        report_id,
        run_id,
        step,
        row_id,
        reason
    FROM content_duplicates
    UNION ALL
    SELECT
        report_id,
        run_id,
        step,
        row_id,
        reason
    FROM transitions
    INNER JOIN episode_verdicts USING (run_id)
    WHERE reason IS NOT NULL
)

SELECT
    left_out.* EXCLUDE (row_id),
    reports.host."set" AS "set",
    reports.host.key AS host_key,
    reports.controller,
    reports.policy_version
FROM left_out
INNER JOIN reports USING (row_id)
