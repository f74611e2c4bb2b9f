-- Service levels that trainings missed (settings `telemetry.slo`), judged at the end of each training.
-- grain: one missed service level of one training
-- key: detected_at, slo
-- inputs: internal.violation_lines
-- column detected_at: Time of the judgement.
-- column slo: Name of the service level, a setting of `telemetry.slo`.
-- column source: Component that missed it.
-- column policy: Digest of the policy that the training made; null if it failed.
-- column target: Largest value that is no violation.
-- column measured: Value that was measured.
-- column unit: Unit of both.
-- column window_s: Seconds over which it was measured.
SELECT
    detected_at,
    slo,
    source,
    policy,
    target,
    measured,
    unit,
    window_s
FROM internal.violation_lines
WHERE detected_at IS NOT NULL
