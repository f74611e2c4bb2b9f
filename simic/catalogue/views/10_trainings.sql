-- All policies that were trained in this home, judged or not. A policy inherits what the policy from which it started
-- had learned: follow `start` to find all snapshots on which it depends.
-- grain: one trained policy
-- key: policy
-- inputs: internal.training_reports
-- column policy: Digest of the sealed policy.
-- column start: Digest of the policy from which training started; null for random weights.
-- column snapshot: Digest of the snapshot; training uses the rows of its train split.
-- column updates: Number of optimiser steps.
-- column episodes: Number of distinct training episodes.
-- column passes: Mean number of replay passes per episode.
-- column metrics: Final values of the training curves, by name.
-- column stopped: Why training ended early, because it was hopeless: collapsed or no_progress; null if it finished.
-- column path: Path of the sealed policy.
-- column seed: Training seed, that of the run or one after it.
-- column config_digest: Digest of the resolved configuration.
-- column code_version: Version of the code.
-- column started_at: Time at which training began.
-- column finished_at: Time at which it was sealed.
SELECT
    digest AS policy,
    start_digest AS start,
    snapshot_digest AS snapshot,
    updates,
    episodes,
    passes,
    metrics,
    stopped.cause AS stopped,
    path,
    seed,
    config_digest,
    code_version,
    started_at,
    finished_at
FROM internal.training_reports
