-- Whether an episode can be learned from: the first reason against it or null, and its quality.
-- Judging experience is never learned from, whatever the settings: one marked report excludes its episode.
-- An episode expires as a whole, with its first report, so retention leaves no partial episodes behind.
-- quality: in [0, 1], the product of the share of active seeds whose contribution was measured, of probed seeds whose
-- gradients were healthy, and of decisions likely enough for importance weights. A share of nothing counts as 1.
-- grain:  one episode
-- key:    run_id
-- inputs: episode_summaries, episode_heads, policies; $oldest (older reports have expired),
--         $max_versions_behind (null: no limit)
SELECT
    summaries.run_id,
    summaries.steps,
    summaries.first_issued_at,
    episode_heads.start_accuracy,
    summaries.parameter_epochs,
    coalesce(summaries.measured_seeds::DOUBLE / nullif(summaries.active_seeds, 0)::DOUBLE, 1.0::DOUBLE)
    * coalesce(summaries.healthy_seeds::DOUBLE / nullif(summaries.probed_seeds, 0)::DOUBLE, 1.0::DOUBLE)
    * (summaries.likely_steps::DOUBLE / summaries.steps::DOUBLE) AS quality,
    policies.versions_behind,
    summaries.size_bytes,
    CASE
        WHEN summaries.is_judging THEN 'judging'
        WHEN summaries.first_issued_at < $oldest THEN 'expired'
        WHEN policies.versions_behind > $max_versions_behind::BIGINT THEN 'stale'
        ELSE summaries.fault
    END AS reason
FROM episode_summaries AS summaries
LEFT JOIN episode_heads USING (run_id)
LEFT JOIN policies USING (policy_version)
