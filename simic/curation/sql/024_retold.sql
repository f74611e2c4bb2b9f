-- Landed rows whose content was told before under another id. The digest of landing covers the id, so content is
-- compared here without it, and only among reports that claim the same step of the same episode.
-- grain:  one landed row
-- key:    report_id, landed_at, source, line
-- inputs: landed, repetitions, reports
WITH once AS (
    SELECT
        run_id,
        step,
        report_id,
        landed_at,
        source,
        line
    FROM landed
    ANTI JOIN repetitions USING (report_id, landed_at, source, line)
),

crowded AS (
    SELECT
        run_id,
        step
    FROM once
    GROUP BY
        run_id,
        step
    HAVING count(*) > 1
),

suspects AS (
    SELECT once.*
    FROM once
    SEMI JOIN crowded USING (run_id, step)
),

told AS (
    SELECT
        suspects.*,
        row_number() OVER (
            PARTITION BY sha256(to_json(content)::VARCHAR)
            ORDER BY suspects.landed_at, suspects.source, suspects.line
        ) AS number
    FROM suspects
    INNER JOIN (
        SELECT
            report_id::UUID AS report_id,
            landed_at,
            source,
            line,
            struct_pack(
                *COLUMNS(* EXCLUDE (report_id, issued_at, content_digest, source, line, landed_at, "day"))
            ) AS content
        FROM reports
    ) USING (report_id, landed_at, source, line)
)

SELECT
    report_id,
    run_id,
    step,
    landed_at,
    source,
    line,
    'same_content' AS reason
FROM told
WHERE number > 1
