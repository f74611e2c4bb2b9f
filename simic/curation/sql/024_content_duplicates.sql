-- Landed rows whose content landed before under another id. The content digest covers the id, so content is compared
-- here without it, and only among reports of the same step of the same episode.
-- grain:  one landed row
-- key:    row_id
-- inputs: landed, repetitions, reports
WITH unique_reports AS (
    SELECT *
    FROM landed
    ANTI JOIN repetitions USING (row_id)
),

contested_steps AS (
    SELECT
        run_id,
        step
    FROM unique_reports
    GROUP BY
        run_id,
        step
    HAVING count(*) > 1
),

suspects AS (
    SELECT unique_reports.*
    FROM unique_reports
    SEMI JOIN contested_steps USING (run_id, step)
),

numbered AS (
    SELECT
        suspects.*,
        row_number() OVER (
            PARTITION BY sha256(to_json(reports.content)::VARCHAR)
            ORDER BY reports.landed_at, reports.source, reports.line
        ) AS number
    FROM suspects
    INNER JOIN (
        SELECT
            row_id,
            landed_at,
            source,
            line,
            struct_pack(
                *COLUMNS(
                    * EXCLUDE (
                        report_id, issued_at, content_digest, source, line, correlation_id, landed_at, "day", row_id
                    )
                )
            ) AS content
        FROM reports
    ) AS reports USING (row_id)
)

SELECT
    report_id,
    run_id,
    step,
    row_id,
    'same_content' AS reason
FROM numbered
WHERE number > 1
