-- Every promotion and rollback, and every rejection: which policy became champion when, or did not, on what grounds.
-- grain: one change of champion, or one rejection
-- key: finished_at, gate
-- inputs: internal.policy_versions, internal.candidate_versions, internal.gate_decisions
-- column name: Registered model.
-- column number: Its version there.
-- column semantic_version: Major: contracts; minor: architecture or features; patch: weights.
-- column policy: Digest of the sealed policy.
-- column reference: How the registry names it.
-- column accepted: Whether it became champion; false where the gate turned it away.
-- column is_live: Whether it is the champion now: the journal of promotions, verified for each query, knows no later one.
-- column previous: Number of the champion before, if any; null for a rejection.
-- column snapshot: Digest of the snapshot that its own training read; see trainings for those before.
-- column gate: Digest of the decision that let it through, or turned it away.
-- column mlflow_run_id: Its run in MLflow.
-- column seed: Root seed of the run.
-- column config_digest: Of the resolved configuration.
-- column code_version: Of the code.
-- column finished_at: When it was done.
WITH rejections AS (
    SELECT candidate_versions.* REPLACE (NULL::BIGINT AS previous)
    FROM internal.candidate_versions
    INNER JOIN internal.gate_decisions ON candidate_versions.gate_digest = gate_decisions.digest
    WHERE NOT gate_decisions.accepted
),

outcomes AS (
    SELECT
        *,
        true AS accepted,
        row_number() OVER (PARTITION BY name ORDER BY policy_versions.rowid DESC) = 1 AS is_live -- as in the ledger
    FROM internal.policy_versions
    UNION ALL BY NAME
    SELECT
        *,
        false AS accepted,
        false AS is_live
    FROM rejections
)

SELECT
    name,
    number,
    semantic_version,
    digest AS policy,
    reference,
    accepted,
    is_live,
    previous,
    snapshot_digest AS snapshot,
    gate_digest AS gate,
    mlflow_run_id,
    seed,
    config_digest,
    code_version,
    finished_at
FROM outcomes
