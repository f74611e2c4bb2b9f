-- The reward of every step in each snapshot; the terms that are not null add up to the reward.
-- grain: one step in one snapshot
-- key: snapshot, run_id, step
-- inputs: internal.snapshot_steps, internal.snapshot_files, internal.manifests
-- column snapshot: Digest of the snapshot.
-- column reward_family: Reward family.
-- column run_id: Id of the episode.
-- column step: Number of the decision in the episode, from 0.
-- column report_id: Id of the report.
-- column family: Family of the host.
-- column host_key: Key of the host, which determines its data, weights and noise.
-- column split: Data split of the host: train, validation or test.
-- column controller: Name of the acting controller.
-- column branch_of: Parent of a branch, the episode that it repeats up to branch_step; null in other episodes.
-- column branch_step: Step at which the action of a branch was enumerated, not chosen; null in other episodes.
-- column contribution: Largest measured contribution of a seed after the window; null if none was measured.
-- column is_hacking: Whether the contribution exceeds curate.flags.hacking_ratio (5) times the improvement of the host since its start; null without contribution.
-- column is_ransomware: Whether the contribution exceeds curate.flags.ransom_contribution (0.1) while the host has lost more than curate.flags.ransom_loss (0.2) since its start; null without contribution.
-- column reward_progress: Points for gained validation accuracy.
-- column reward_rent: Points paid for parameters; zero or negative.
-- column reward_penalty: Points paid for a panic; zero or negative.
-- column reward_shaping: Points for the change of the potential; null if the family has none.
-- column reward_effort: Points paid for germinating and pruning; null if the family has no such price.
-- column potential: Potential of the state, in points; null if the family has none.
-- column reward: Sum of the terms.
-- column return_to_go: Discounted rewards from here to the end of the episode.
WITH steps AS (
    FROM internal.snapshot_steps
    UNION ALL BY NAME
    SELECT -- columns that snapshots of earlier versions lack
        NULL::VARCHAR AS branch_of,
        NULL::BIGINT AS branch_step,
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
    branch_of,
    branch_step,
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
