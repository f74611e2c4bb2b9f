-- The reward of every step, term by term, in each snapshot and by its family; terms that are not null add up to the reward.
-- grain: one step in one snapshot
-- key: snapshot, run_id, step
-- inputs: internal.snapshot_steps, internal.snapshot_files, internal.manifests
-- column snapshot: Digest of the snapshot.
-- column reward_family: How its rewards were computed.
-- column run_id: The episode.
-- column step: From 0.
-- column report_id: The report behind the row.
-- column family: The host's family.
-- column host_key: Fixes the host's data, weights and noise.
-- column split: train, validation or test, by the host's key.
-- column controller: Who decided.
-- column contribution: The largest measured of any seed after the window; null where none was measured.
-- column is_hacking: A seed claims over 5 times what the host has improved since its start; null without contribution.
-- column is_ransomware: A contribution above 0.1 though the host has lost over 0.2; null without contribution.
-- column reward_progress: Points for validation accuracy gained.
-- column reward_rent: Points paid for parameters; zero or negative.
-- column reward_penalty: Points paid for a panic; zero or negative.
-- column reward_shaping: Points for the change of the potential; null where the family has none.
-- column reward_effort: Points paid for germinating and pruning; null where the family has no such price.
-- column potential: Of the state, in points; null where the family has none.
-- column reward: The sum of the terms.
-- column return_to_go: Discounted rewards from here to the end of the episode.
WITH steps AS (
    FROM internal.snapshot_steps
    UNION ALL BY NAME
    SELECT -- columns that snapshots of earlier versions lack
        NULL::DOUBLE AS contribution,
        NULL::BOOLEAN AS is_hacking,
        NULL::BOOLEAN AS is_ransomware,
        NULL::DOUBLE AS reward_shaping,
        NULL::DOUBLE AS reward_effort,
        NULL::DOUBLE AS potential
    WHERE false
)

SELECT
    snapshot_files.snapshot,
    manifests.reward_family,
    run_id,
    step,
    report_id,
    family,
    host_key,
    split,
    controller,
    contribution,
    is_hacking,
    is_ransomware,
    reward_progress,
    reward_rent,
    reward_penalty,
    reward_shaping,
    reward_effort,
    potential,
    reward,
    return_to_go
FROM steps
INNER JOIN internal.snapshot_files USING (filename)
INNER JOIN internal.manifests ON snapshot_files.snapshot = manifests.digest
