-- All promotions, rollbacks and rejections, with the gate decision behind each.
-- grain: one change of champion, or one rejection
-- key: finished_at, gate
-- inputs: internal.policy_versions, internal.candidate_versions, internal.gate_decisions
-- column name: Name of the registered model: tamiyo for policies, karn. Each has a champion.
-- column number: Version number in the registry.
-- column semantic_version: Major: contracts; minor: architecture or features; patch: weights.
-- column policy: Digest of the sealed policy or Karn.
-- column reference: Reference to the version in the registry.
-- column accepted: Whether it became champion; false if the gate rejected it.
-- column is_live: Whether it is the champion now, according to the journal of promotions, which is verified for each query.
-- column previous: Version number of the previous champion, if any; null for a rejection.
-- column snapshot: Digest of the snapshot of its own training; `trainings` has those of earlier rounds.
-- column gate: Digest of the gate decision.
-- column mlflow_run_id: Id of its run in MLflow.
-- column seed: Training seed, that of the run or one after it.
-- column config_digest: Digest of the resolved configuration.
-- column code_version: Version of the code.
-- column finished_at: Time of the promotion, rollback or rejection.
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
