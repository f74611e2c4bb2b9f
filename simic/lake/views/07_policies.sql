-- Every promotion and rollback: which policy became champion when, and on what grounds.
-- grain: one change of champion
-- key: finished_at
-- inputs: policy_versions
-- column name: Registered model.
-- column number: Its version there.
-- column semantic_version: Major: contracts; minor: architecture or features; patch: weights.
-- column policy: Digest of the sealed policy.
-- column reference: How the registry names it.
-- column is_live: Whether it is the champion now: no later change of champion is known.
-- column previous: Number of the champion before, if any.
-- column snapshot: Digest of the snapshot it learned from.
-- column gate: Digest of the decision that let it through.
-- column mlflow_run_id: Its run in MLflow.
-- column seed: Root seed of the run.
-- column config_digest: Of the resolved configuration.
-- column code_version: Of the code.
-- column finished_at: When it was done.
SELECT
    name,
    number,
    semantic_version,
    digest AS policy,
    reference,
    row_number() OVER (PARTITION BY name ORDER BY finished_at DESC, number DESC) = 1 AS is_live,
    previous,
    snapshot_digest AS snapshot,
    gate_digest AS gate,
    mlflow_run_id,
    seed,
    config_digest,
    code_version,
    finished_at
FROM policy_versions
