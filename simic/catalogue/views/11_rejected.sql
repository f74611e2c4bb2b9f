-- All landed rows that a snapshot left out, with the reason.
-- grain: one landed row in one snapshot
-- key: none
-- inputs: internal.snapshot_rejected, internal.snapshot_files
-- column snapshot: Digest of the snapshot.
-- column report_id: Id of the report that was left out.
-- column run_id: Id of its episode.
-- column step: Number of its step, from 0.
-- column reason: Reason, either of the row (duplicate, conflict, same_content) or of its whole episode.
-- column message: Explanation in one sentence, with the setting that decides, if there is one.
SELECT
    snapshot_files.snapshot,
    report_id,
    run_id,
    step,
    reason,
    CASE reason
        WHEN 'duplicate' THEN 'The same report landed before.'
        WHEN 'conflict' THEN 'A report with this id and other content landed before; the first one counts.'
        WHEN 'same_content' THEN 'A report with this content landed before under another id.'
        WHEN 'judging' THEN 'The episode is judging experience: it belongs to a trial or comparison, and nothing learns from it.'
        WHEN 'expired' THEN 'The episode is older than curate.ttl_days.'
        WHEN 'stale' THEN 'The acting policy is further behind the newest than curate.max_versions_behind.'
        WHEN 'mixed_identity' THEN 'Reports of the episode name different hosts, controllers, policies, parents or state.seeds_max.'
        WHEN 'unnamed_policy' THEN 'A policy of Simic acted, and the reports do not say which.'
        WHEN 'overlap' THEN 'Two different reports give the same step of the episode.'
        WHEN 'gap' THEN 'A step of the episode is missing; it may be in the quarantine.'
        WHEN 'unfinished' THEN 'The last step of the episode is missing.'
        WHEN 'ends_twice' THEN 'More than one step ends the episode.'
        WHEN 'other_horizon' THEN 'Neither world.horizon nor curate.also_horizons is the horizon of the episode.'
        WHEN 'broken_chain' THEN 'A step does not start in the state in which the step before ended.'
        WHEN 'evicted' THEN 'The usable episodes exceed curate.max_mb; this is one of those removed first.'
        ELSE 'No message for this reason: the snapshot was made by another version.'
    END AS message
FROM internal.snapshot_rejected
INNER JOIN internal.snapshot_files USING (filename)
