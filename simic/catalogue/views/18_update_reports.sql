-- From an update to reports: the training episodes on which its policy was trained, those of earlier rounds and of the
-- policies from which it started included, with the correlation ids under which their reports came.
-- grain: one episode under one correlation id, for one update and one training
-- key: update_id, trained, run_id, correlation_id
-- inputs: updates, trainings, internal.snapshot_steps, internal.snapshot_files, internal.landed
-- column update_id: Event id of the update.
-- column policy: Digest of the policy that it tells of.
-- column trained: Digest of the policy whose training read the episode: the policy itself, or one from which it started.
-- column snapshot: Digest of the snapshot that this training read.
-- column correlation_id: Correlation id of the reports; null if they travelled without an envelope, or have left the lake.
-- column run_id: Id of the episode.
-- column controller: Name of the controller that acted in it.
-- column acting_policy: Digest of the policy that acted in it; null for a controller without weights.
-- column reports: Number of reports.
WITH RECURSIVE lineage AS (
    SELECT DISTINCT
        policy,
        policy AS trained
    FROM updates
    UNION
    SELECT
        lineage.policy,
        trainings.start AS trained
    FROM lineage
    INNER JOIN trainings ON lineage.trained = trainings.policy
    WHERE trainings.start IS NOT NULL
),

reads AS (
    SELECT DISTINCT
        lineage.policy,
        lineage.trained,
        trainings."snapshot"
    FROM lineage
    INNER JOIN trainings ON lineage.trained = trainings.policy
),

steps_read AS (
    SELECT
        snapshot_files."snapshot",
        snapshot_steps.report_id,
        snapshot_steps.run_id,
        snapshot_steps.controller,
        snapshot_steps.policy_version
    FROM internal.snapshot_steps
    INNER JOIN internal.snapshot_files USING (filename)
    WHERE snapshot_steps.split = 'train'
)

SELECT
    updates.update_id,
    updates.policy,
    reads.trained,
    reads."snapshot",
    landed.correlation_id,
    steps_read.run_id,
    steps_read.controller,
    steps_read.policy_version AS acting_policy,
    count(*) AS reports
FROM updates
INNER JOIN reads ON updates.policy = reads.policy
INNER JOIN steps_read ON reads."snapshot" = steps_read."snapshot"
LEFT JOIN internal.landed ON steps_read.report_id = landed.report_id
GROUP BY ALL
