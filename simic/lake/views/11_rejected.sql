-- Every landed row that a snapshot left out, and why.
-- grain: one landed row in one snapshot
-- key: none
-- inputs: snapshot_rejected, snapshot_files
-- column snapshot: Digest of the snapshot.
-- column report_id: The report left out.
-- column run_id: Its episode.
-- column step: Its step.
-- column reason: duplicate, or why its whole episode cannot be used.
SELECT
    snapshot_files.snapshot,
    report_id,
    run_id,
    step,
    reason
FROM snapshot_rejected
INNER JOIN snapshot_files USING (filename)
