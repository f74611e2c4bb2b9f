-- What an episode is worth to a learner: null, or the first reason against it, and its quality.
-- An episode expires as a whole, with its first report, so retention leaves no partial episodes behind.
-- quality: in [0, 1], a product of shares: of seeds that the host feels whose contribution was measured, of probed
-- seeds whose gradients were healthy, of decisions likely enough for importance weights. What never occurred is left out.
-- grain:  one episode
-- key:    run_id
-- inputs: transitions, episode_heads, policies; $oldest (older reports have expired), $horizon (epochs),
--         $max_versions_behind (null: no limit), $chain_tolerance (accuracy)
WITH told AS (
    SELECT
        run_id,
        count(*) AS steps,
        min(step) AS first_step,
        min(issued_at) AS first_issued_at,
        min(identity) <> max(identity) AS has_two_identities,
        bool_or(next_step = step) AS has_overlap,
        bool_or(next_step > step + 1) AS has_gap,
        bool_or(next_step IS NULL AND has_final_state AND (terminated OR truncated)) AS has_end,
        count_if(terminated OR truncated) AS ends,
        bool_or(horizon <> $horizon) AS has_other_horizon,
        bool_or(abs(accuracy_before - state_accuracy) > $chain_tolerance) AS starts_elsewhere,
        bool_or(
            NOT (terminated OR truncated) AND abs(accuracy_after - next_accuracy) > $chain_tolerance
        ) AS leads_elsewhere,
        coalesce(sum(measured_seeds)::DOUBLE / nullif(sum(felt_seeds), 0)::DOUBLE, 1.0::DOUBLE)
        * coalesce(sum(healthy_seeds)::DOUBLE / nullif(sum(probed_seeds), 0)::DOUBLE, 1.0::DOUBLE)
        * (count_if(is_likely)::DOUBLE / count(*)::DOUBLE) AS quality
    FROM transitions
    GROUP BY run_id
)

SELECT
    told.run_id,
    told.steps,
    told.first_issued_at,
    told.quality,
    policies.versions_behind,
    told.steps * episode_heads.bytes_per_step AS size_bytes,
    CASE
        WHEN told.first_issued_at < $oldest THEN 'expired'
        WHEN policies.versions_behind > $max_versions_behind::BIGINT THEN 'stale'
        WHEN told.has_two_identities THEN 'mixed_identity'
        WHEN told.has_overlap THEN 'overlap'
        WHEN told.first_step > 0 OR told.has_gap THEN 'gap'
        WHEN NOT told.has_end THEN 'unfinished'
        WHEN told.ends > 1 THEN 'ends_twice'
        WHEN told.has_other_horizon THEN 'other_horizon'
        WHEN told.starts_elsewhere OR told.leads_elsewhere THEN 'broken_chain'
    END AS reason
FROM told
LEFT JOIN episode_heads USING (run_id)
LEFT JOIN policies USING (policy_version)
