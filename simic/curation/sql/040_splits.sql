-- The split of every host. The host's key determines it, so all episodes of a host are in one split.
-- grain:  one host
-- key:    set, host_key
-- inputs: episode_heads; $train_share, $test_share (per cent)
WITH hosts AS (
    SELECT DISTINCT
        "set",
        host_key
    FROM episode_heads
),

buckets AS (
    SELECT
        *,
        ('0x' || sha256("set" || ':' || host_key)[1:8])::UBIGINT % 100 AS bucket
    FROM hosts
)

SELECT
    "set",
    host_key,
    CASE
        WHEN bucket < $train_share THEN 'train'
        WHEN bucket >= 100 - $test_share THEN 'test'
        ELSE 'validation'
    END::SPLIT AS split
FROM buckets
