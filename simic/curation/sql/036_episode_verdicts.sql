-- Whether an episode may be used: null, or the reason against it. Beyond the byte budget whole episodes are evicted,
-- the oldest days first, within a day those of lowest quality first.
-- grain:  one episode
-- key:    run_id
-- inputs: episode_quality; $max_bytes (null: no limit)
WITH ranked AS (
    SELECT
        run_id,
        sum(size_bytes) OVER (
            ORDER BY first_issued_at::DATE DESC, quality DESC, run_id ROWS UNBOUNDED PRECEDING
        ) AS bytes_so_far
    FROM episode_quality
    WHERE reason IS NULL
)

SELECT
    episode_quality.* REPLACE (if(ranked.bytes_so_far > $max_bytes::BIGINT, 'evicted', episode_quality.reason) AS reason)
FROM episode_quality
LEFT JOIN ranked USING (run_id)
