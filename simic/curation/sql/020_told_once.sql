-- Every report once: the row that landed first.
-- grain:  one report
-- key:    report_id
-- inputs: landed
SELECT *
FROM landed
QUALIFY row_number() OVER (PARTITION BY report_id ORDER BY landed_at, source, line) = 1
