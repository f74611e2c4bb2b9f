-- Every landed report, with all that it said.
-- grain: one report
-- key: report_id
-- inputs: internal.landed
SELECT *
FROM internal.landed
