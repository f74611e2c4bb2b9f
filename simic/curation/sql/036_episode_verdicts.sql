-- Whether an episode may be used: null, or the reason against it. Beyond the byte budget whole episodes are evicted,
-- the oldest days first, within a day those of lowest quality first. An episode and its branches stay or go together,
-- by its own quality: branches whose seeds fail are of low quality, and without them their decision looks harmless.
-- An episode that with its branches exceeds the budget by itself is evicted and takes no room from the others.
-- grain:  one episode
-- key:    run_id
-- inputs: episode_quality, episode_heads; $max_bytes (null: no limit)
WITH usable AS (
    SELECT
        run_id,
        coalesce(episode_heads.branch_of::UUID, run_id) AS parent,
        first_issued_at::DATE AS day,
        quality,
        size_bytes
    FROM episode_quality
    INNER JOIN episode_heads USING (run_id)
    WHERE reason IS NULL
),

trees AS (
    SELECT
        parent,
        max(day) AS day,
        coalesce(any_value(quality) FILTER (run_id = parent), max(quality)) AS quality,
        sum(size_bytes) AS size_bytes
    FROM usable
    GROUP BY parent
),

ranked AS (
    SELECT
        parent,
        sum(size_bytes) OVER (ORDER BY day DESC, quality DESC, parent ROWS UNBOUNDED PRECEDING) AS bytes_so_far
    FROM trees
    WHERE coalesce(size_bytes <= $max_bytes::BIGINT, true)
),

evicted AS (
    SELECT usable.run_id
    FROM usable
    LEFT JOIN ranked USING (parent)
    WHERE ranked.parent IS NULL OR ranked.bytes_so_far > $max_bytes::BIGINT
)

SELECT
    episode_quality.* REPLACE (if(evicted.run_id IS NULL, episode_quality.reason, 'evicted') AS reason)
FROM episode_quality
LEFT JOIN evicted USING (run_id)
