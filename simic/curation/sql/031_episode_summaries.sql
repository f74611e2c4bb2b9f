-- Totals of an episode, and what is wrong with it: the first fault for which nothing can be learned from it, or null.
-- A policy that its reports do not name has no version to be compared with; ingests refuse such reports today.
-- is_judging: one marked report is enough.
-- grain:  one episode
-- key:    run_id
-- inputs: transitions, episode_heads; $horizons (epochs), $chain_tolerance (accuracy),
--         $least_health (share of gradients that were finite and not 0)
WITH counted AS (
    SELECT
        *,
        list_filter(seeds, lambda seed: seed.stage IN ('BLENDING', 'HOLDING', 'FOSSILIZED')) AS active,
        list_filter(seeds, lambda seed: seed.health IS NOT NULL) AS probed
    FROM transitions
),

summaries AS (
    SELECT
        run_id,
        count(*) AS steps,
        min(step) AS first_step,
        min(issued_at) AS first_issued_at,
        bool_or(is_judging) AS is_judging,
        min(identity) <> max(identity) AS has_two_identities,
        bool_or(next_step = step) AS has_overlap,
        bool_or(next_step > step + 1) AS has_gap,
        bool_or(next_step IS NULL AND has_final_state AND (terminated OR truncated)) AS has_end,
        count_if(terminated OR truncated) AS ends,
        min(horizon) <> max(horizon) OR NOT list_contains($horizons, min(horizon)) AS has_other_horizon,
        bool_or(abs(accuracy_before - state_accuracy) > $chain_tolerance) AS starts_elsewhere,
        bool_or(
            NOT (terminated OR truncated)
            AND (
                abs(accuracy_after - next_accuracy) > $chain_tolerance OR skips_epochs
                OR coalesce(pays_for_another, FALSE)
            )
        ) AS leads_elsewhere,
        sum(len(active)) AS active_seeds,
        sum(len(list_filter(active, lambda seed: seed.contribution IS NOT NULL))) AS measured_seeds,
        sum(len(probed)) AS probed_seeds,
        sum(len(list_filter(probed, lambda seed: seed.health >= $least_health))) AS healthy_seeds,
        count_if(is_likely) AS likely_steps,
        sum(rent_parameters) AS parameter_epochs,
        sum(size_bytes)::BIGINT AS size_bytes
    FROM counted
    GROUP BY run_id
)

SELECT
    summaries.run_id,
    summaries.steps,
    summaries.first_issued_at,
    summaries.is_judging,
    summaries.active_seeds,
    summaries.measured_seeds,
    summaries.probed_seeds,
    summaries.healthy_seeds,
    summaries.likely_steps,
    summaries.parameter_epochs,
    summaries.size_bytes,
    CASE
        WHEN summaries.has_two_identities THEN 'mixed_identity'
        WHEN
            episode_heads.policy_version IS NULL
            AND (episode_heads.controller = 'learned' OR starts_with(episode_heads.controller, 'learned-karn-'))
            THEN 'unnamed_policy'
        WHEN summaries.has_overlap THEN 'overlap'
        WHEN summaries.first_step > 0 OR summaries.has_gap THEN 'gap'
        WHEN NOT summaries.has_end THEN 'unfinished'
        WHEN summaries.ends > 1 THEN 'ends_twice'
        WHEN summaries.has_other_horizon THEN 'other_horizon'
        WHEN summaries.starts_elsewhere OR summaries.leads_elsewhere THEN 'broken_chain'
    END AS fault
FROM summaries
LEFT JOIN episode_heads USING (run_id)
