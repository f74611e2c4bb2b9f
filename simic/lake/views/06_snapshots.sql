-- Every snapshot that training can read.
-- grain: one snapshot
-- key: snapshot
-- inputs: manifests
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
-- column ledger_digest: Of those parts.
-- column sql_digest: Of the rules.
-- column config_digest: Of the resolved configuration.
-- column code_version: Of the code.
-- column finished_at: When it was sealed.
SELECT
    digest AS snapshot,
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
    ledger_digest,
    sql_digest,
    config_digest,
    code_version,
    finished_at
FROM manifests
