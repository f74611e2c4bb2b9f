-- Landed rows whose report id landed before, with the reason for leaving them out; the row that landed first is kept.
-- duplicate: same content. conflict: other content.
-- grain:  one landed row
-- key:    row_id
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

numbered AS (
    SELECT
        suspects.*,
        reports.content_digest,
        row_number() OVER in_landing_order AS number,
        first_value(reports.content_digest) OVER in_landing_order AS first_digest
    FROM suspects
    INNER JOIN reports USING (row_id)
    WINDOW in_landing_order AS (
        PARTITION BY suspects.report_id ORDER BY reports.landed_at, reports.source, reports.line
    )
)

SELECT
    report_id,
    run_id,
    step,
    row_id,
    if(content_digest = first_digest, 'duplicate', 'conflict') AS reason
FROM numbered
WHERE number > 1
