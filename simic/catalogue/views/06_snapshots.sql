-- Every snapshot that training can read.
-- grain: one snapshot
-- key: snapshot
-- inputs: internal.manifests, internal.training_reports, internal.pins
-- column snapshot: Its digest.
-- column path: Where it lies.
-- column rows_in: Landed rows it was made from.
-- column rows_out: Steps it holds.
-- column rejected: Rows left out, per reason.
-- column train_episodes: Episodes to learn from.
-- column validation_episodes: Episodes to tune on.
-- column test_episodes: Episodes held out.
-- column reward_family: How rewards were computed.
-- column reward_digest: Of the family and its constants; null in snapshots made before there was a choice.
-- column gamma: Discount per epoch.
-- column parts: Parts it was made from.
-- column policies: Policies whose own training read it.
-- column is_pinned: Whether it is kept whatever happens.
-- column ledger_digest: Of those parts.
-- column sql_digest: Of the rules.
-- column config_digest: Of the resolved configuration.
-- column code_version: Of the code.
-- column finished_at: When it was sealed.
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
    ledger_parts AS parts,
    coalesce(readers.policies, []) AS policies,
    manifests.digest IN (SELECT snapshot FROM internal.pins) AS is_pinned,
    ledger_digest,
    sql_digest,
    config_digest,
    code_version,
    finished_at
FROM internal.manifests
LEFT JOIN readers ON manifests.digest = readers.snapshot_digest
