-- What was left out, and why.
-- grain:  one landed row
-- key:    none
-- inputs: rejected_rows
SELECT *
FROM rejected_rows
ORDER BY
    run_id,
    step,
    report_id,
    reason
