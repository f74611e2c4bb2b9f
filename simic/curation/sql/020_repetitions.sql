-- Landed rows of reports told before, and why they do not count: the row that landed first does.
-- duplicate: told again. conflict: another content under an id already taken.
-- grain:  one landed row
-- key:    place
-- inputs: landed, reports
WITH repeated AS (
    SELECT report_id
    FROM landed
    GROUP BY report_id
    HAVING count(*) > 1
),

suspects AS (
    SELECT *
    FROM landed
    SEMI JOIN repeated USING (report_id)
),

told AS (
    SELECT
        suspects.*,
        reports.content_digest,
        row_number() OVER first_told AS number,
        first_value(reports.content_digest) OVER first_told AS first_digest
    FROM suspects
    INNER JOIN reports USING (place)
    WINDOW first_told AS (
        PARTITION BY suspects.report_id ORDER BY reports.landed_at, reports.source, reports.line
    )
)

SELECT
    report_id,
    run_id,
    step,
    place,
    if(content_digest = first_digest, 'duplicate', 'conflict') AS reason
FROM told
WHERE number > 1
