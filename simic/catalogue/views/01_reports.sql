-- All landed reports, with all of their fields.
-- grain: one report
-- key: report_id
-- inputs: internal.landed
SELECT *
FROM internal.landed
