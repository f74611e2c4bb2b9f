-- How many episodes of a policy in production succeeded since a moment. An episode succeeds that the governor did not
-- end and that loses at most 0.005 of validation accuracy: what a report calls a regression loses as much. One without
-- an end counts as cut off after three times the longest whole episode of its set; until then it is open. All reports
-- of this home's own collections carry one moment, so such episodes tell no duration.
-- grain: one row
-- inputs: episodes
-- parameter digest: Digest of the policy.
-- parameter since: Time from which an episode began, ISO 8601.
-- parameter now: Time at which the rollout is judged, ISO 8601.
-- parameter collected: Starts of this home's own collections with the policy, ISO 8601; their episodes are left out.
WITH longest AS (
    SELECT "set", max(last_issued_at - first_issued_at) AS duration
    FROM episodes
    WHERE is_complete AND branch_of IS NULL AND trial_id IS NULL AND last_issued_at > first_issued_at
    GROUP BY "set"
),

produced AS (
    SELECT
        is_complete,
        is_complete AND ending <> 'aborted' AND accuracy_after >= accuracy_before - 0.005 AS is_success,
        NOT is_complete
        AND coalesce($now::TIMESTAMPTZ - first_issued_at > 3.0 * duration, FALSE) AS is_cut_off
    FROM episodes
    LEFT JOIN longest USING ("set")
    WHERE
        policy_version = $digest
        AND first_issued_at >= $since::TIMESTAMPTZ
        AND branch_of IS NULL
        AND trial_id IS NULL
        AND NOT list_contains($collected::TIMESTAMPTZ[], first_issued_at)
)

SELECT
    count(*) FILTER (WHERE is_complete OR is_cut_off) AS episodes,
    count(*) FILTER (WHERE is_success) AS succeeded,
    count(*) FILTER (WHERE is_cut_off) AS cut_off,
    count(*) FILTER (WHERE NOT (is_complete OR is_cut_off)) AS open
FROM produced
