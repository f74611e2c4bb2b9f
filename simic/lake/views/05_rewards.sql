-- The reward of every step, term by term, in each snapshot; terms add up to the reward.
-- grain: one step in one snapshot
-- key: snapshot, run_id, step
-- inputs: snapshot_steps, snapshot_files
-- column snapshot: Digest of the snapshot.
-- column run_id: The episode.
-- column step: From 0.
-- column family: The host's family.
-- column host_key: Fixes the host's data, weights and noise.
-- column split: train, validation or test, by the host's key.
-- column controller: Who decided.
-- column reward_progress: Points for validation accuracy gained.
-- column reward_rent: Points paid for parameters; zero or negative.
-- column reward_penalty: Points paid for a panic; zero or negative.
-- column reward: Their sum.
-- column return_to_go: Discounted rewards from here to the end of the episode.
SELECT
    snapshot_files.snapshot,
    run_id,
    step,
    family,
    host_key,
    split,
    controller,
    reward_progress,
    reward_rent,
    reward_penalty,
    reward,
    return_to_go
FROM snapshot_steps
INNER JOIN snapshot_files USING (filename)
