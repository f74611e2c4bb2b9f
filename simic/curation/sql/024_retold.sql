-- Landed rows whose content was told before under another id. The digest of landing covers the id, so content is
-- compared here without it, and only among reports that claim the same step of the same episode.
-- grain:  one landed row
-- key:    place
-- inputs: landed, repetitions, reports
WITH once AS (
    SELECT *
    FROM landed
    ANTI JOIN repetitions USING (place)
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
            PARTITION BY sha256(to_json(reports.content)::VARCHAR)
            ORDER BY reports.landed_at, reports.source, reports.line
        ) AS number
    FROM suspects
    INNER JOIN (
        SELECT
            place,
            landed_at,
            source,
            line,
            struct_pack(
                *COLUMNS(* EXCLUDE (report_id, issued_at, content_digest, source, line, landed_at, "day", place))
            ) AS content
        FROM reports
    ) AS reports USING (place)
)

SELECT
    report_id,
    run_id,
    step,
    place,
    'same_content' AS reason
FROM told
WHERE number > 1
