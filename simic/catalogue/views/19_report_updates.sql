-- From reports to an update: the policy that acted in an episode, its version, and the update that production had then.
-- grain: one episode under one correlation id; only episodes in which a policy acted
-- key: run_id, correlation_id
-- inputs: steps, updates, internal.candidate_versions
-- column run_id: Id of the episode.
-- column correlation_id: Correlation id of its reports; null if they travelled without an envelope.
-- column policy: Digest of the acting policy.
-- column semantic_version: Version of that policy in this registry; null if it was never recorded here.
-- column reference: Reference to that version.
-- column update_id: Event id of the newest update about that policy before the first of these reports; null without one.
-- column updated_at: Time at which that update was signed.
-- column reports: Number of reports.
-- column first_issued_at: Time at which the first of these reports was made.
WITH acted AS (
    SELECT
        run_id,
        correlation_id,
        policy_version AS policy,
        count(*) AS reports,
        min(issued_at) AS first_issued_at
    FROM steps
    WHERE policy_version IS NOT NULL
    GROUP BY ALL
),

versions AS (
    SELECT
        digest AS policy,
        max_by(semantic_version, finished_at) AS semantic_version,
        max_by(reference, finished_at) AS reference
    FROM internal.candidate_versions
    GROUP BY digest
)

SELECT
    acted.run_id,
    acted.correlation_id,
    acted.policy,
    versions.semantic_version,
    versions.reference,
    updates.update_id,
    updates.issued_at AS updated_at,
    acted.reports,
    acted.first_issued_at
FROM acted
LEFT JOIN versions ON acted.policy = versions.policy
ASOF LEFT JOIN updates ON acted.policy = updates.policy AND acted.first_issued_at >= updates.issued_at
