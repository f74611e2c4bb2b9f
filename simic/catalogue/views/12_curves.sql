-- The training curves of every policy: one logged metric at one update. A policy of a later round begins with the curves of the rounds before it.
-- grain: one metric of one policy at one step
-- key: policy, step, metric
-- inputs: internal.curve_lines, internal.curve_files
-- column policy: Digest of the sealed policy.
-- column step: Number of the update at which the metric was logged, from 0.
-- column metric: Name of the metric, as in MLflow.
-- column value: Value of the metric; null if it was not finite.
WITH logged AS (
    SELECT
        filename,
        step,
        unnest(map_entries(metrics)) AS metric
    FROM internal.curve_lines
)

SELECT
    curve_files.policy,
    step,
    metric.key AS metric,
    metric.value AS "value"
FROM logged
INNER JOIN internal.curve_files USING (filename)
