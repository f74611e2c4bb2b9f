-- What trainings told of themselves: one packet at the end of each, and more on the way with `telemetry.level = full`.
-- grain: one packet
-- key: emitted_at
-- inputs: internal.packet_lines
-- column emitted_at: Time of the packet.
-- column source: Component that emitted it.
-- column status: HEALTHY, or DEGRADED (a service level was missed, or a sink lost records), UNHEALTHY (the training diverged and was recovered) or CRITICAL (it failed).
-- column policy: Digest of the policy that the training made; null on the way, and if it failed.
-- column metrics: Newest value of each metric by its exported name (docs/metrics.md).
SELECT
    emitted_at,
    source,
    status,
    policy,
    metrics
FROM internal.packet_lines
WHERE emitted_at IS NOT NULL
