-- All snapshots that training can read.
-- grain: one snapshot
-- key: snapshot
-- inputs: internal.manifests, internal.training_reports, internal.pins
-- column snapshot: Digest of the snapshot.
-- column path: Path of the folder.
-- column rows_in: Number of landed rows from which it was made.
-- column rows_out: Number of steps.
-- column rejected: Number of rows left out, per reason.
-- column train_episodes: Number of training episodes.
-- column validation_episodes: Number of validation episodes.
-- column test_episodes: Number of held-out test episodes.
-- column reward_family: Reward family.
-- column reward_digest: Digest of the reward family and its constants; null in snapshots of versions with one family.
-- column gamma: Discount per epoch.
-- column parts: Number of parts from which it was made.
-- column policies: Policies that were trained on it directly.
-- column is_pinned: Whether it is excluded from pruning.
-- column ledger_digest: Digest over these parts.
-- column sql_digest: Digest of the curation SQL.
-- column config_digest: Digest of the resolved configuration.
-- column code_version: Version of the code.
-- column finished_at: Time at which it was sealed.
WITH readers AS (
    SELECT
        snapshot_digest,
        list(digest ORDER BY finished_at, digest) AS policies
    FROM internal.training_reports
    GROUP BY snapshot_digest
)

SELECT
    manifests.digest AS snapshot,
    path,
    rows_in,
    rows_out,
    rejected,
    episodes['train'] AS train_episodes,
    episodes['validation'] AS validation_episodes,
    episodes['test'] AS test_episodes,
    reward_family,
    reward_digest,
    gamma,
    len(ledger_parts) AS parts,
    coalesce(readers.policies, []) AS policies,
    manifests.digest IN (SELECT snapshot FROM internal.pins) AS is_pinned,
    ledger_digest,
    sql_digest,
    config_digest,
    code_version,
    finished_at
FROM internal.manifests
LEFT JOIN readers ON manifests.digest = readers.snapshot_digest
