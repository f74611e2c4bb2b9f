-- Landed rows of reports told before, and why they do not count: the row that landed first does.
-- duplicate: told again. conflict: another content under an id already taken.
-- grain:  one landed row
-- key:    report_id, landed_at, source, line
-- inputs: landed, reports
WITH repeated AS (
    SELECT report_id
    FROM landed
    GROUP BY report_id
    HAVING count(*) > 1
),

told AS (
    SELECT
        report_id::UUID AS report_id,
        run_id::UUID AS run_id,
        step::INTEGER AS step,
        landed_at,
        source,
        line,
        content_digest,
        row_number() OVER first_told AS number,
        first_value(content_digest) OVER first_told AS first_digest
    FROM reports
    WHERE report_id::UUID IN (FROM repeated)
    WINDOW first_told AS (PARTITION BY report_id ORDER BY landed_at, source, line)
)

SELECT
    report_id,
    run_id,
    step,
    landed_at,
    source,
    line,
    if(content_digest = first_digest, 'duplicate', 'conflict') AS reason
FROM told
WHERE number > 1
