-- Every landed row that is in no snapshot, with the reason.
-- grain:  one landed row
-- key:    none
-- inputs: landed, told_once, episode_verdicts
WITH repetitions AS (
    SELECT
        report_id,
        run_id,
        step,
        'duplicate' AS reason
    FROM landed
    QUALIFY row_number() OVER (PARTITION BY report_id ORDER BY landed_at, source, line) > 1
),

unusable AS (
    SELECT
        report_id,
        run_id,
        step,
        reason
    FROM told_once
    INNER JOIN episode_verdicts USING (run_id)
    WHERE reason IS NOT NULL
)

SELECT * FROM repetitions
UNION ALL
SELECT * FROM unusable
