-- The landed rows that the snapshot leaves out, with the reason.
-- grain:  one landed row
-- key:    none
-- inputs: rejected_rows
SELECT
    replace(report_id::VARCHAR, '-', '') AS report_id,
    replace(run_id::VARCHAR, '-', '') AS run_id,
    step::BIGINT AS step,
    reason,
    "set",
    host_key::BIGINT AS host_key,
    controller,
    policy_version
FROM rejected_rows
ORDER BY
    run_id,
    step,
    report_id,
    reason,
    "set",
    host_key,
    controller,
    policy_version
