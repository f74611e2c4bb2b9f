-- Every policy that was trained here, whether or not it ever came before the gate. A policy also knows what the
-- policy it started from had learned, and so on back: follow `start` to find every snapshot behind it.
-- grain: one trained policy
-- key: policy
-- inputs: internal.training_reports
-- column policy: Digest of the sealed policy.
-- column start: The policy it started from; null for one that began from nothing.
-- column snapshot: Digest of the snapshot it read; it learned from the rows of its train split.
-- column updates: Optimiser steps.
-- column episodes: Distinct training episodes seen.
-- column passes: Mean replay passes per episode so far.
-- column metrics: Final values of the training curves, by name.
-- column path: Where it was sealed.
-- column seed: Root seed of the run.
-- column config_digest: Of the resolved configuration.
-- column code_version: Of the code.
-- column started_at: When its training began.
-- column finished_at: When it was sealed.
SELECT
    digest AS policy,
    start_digest AS start,
    snapshot_digest AS snapshot,
    updates,
    episodes,
    passes,
    metrics,
    path,
    seed,
    config_digest,
    code_version,
    started_at,
    finished_at
FROM internal.training_reports
