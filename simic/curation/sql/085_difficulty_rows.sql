-- Difficulty of each training host, for a curriculum: its rank by mean episode return among the training hosts of its
-- set, 0 the easiest and 1 the hardest. Hosts of the other splits have none. Branches do not count: one of their
-- actions was enumerated, so their returns are not those of a controller. A host with branches only has no row. Reports
-- of other producers may name one host under two families; it is one host, under the first of these names.
-- grain:  one training host
-- key:    set, host_key
-- inputs: episode_rows
WITH hosts AS (
    SELECT
        "set",
        min(family) AS family,
        host_key,
        count(*) AS episodes,
        list_sum(list(episode_return ORDER BY run_id)) / count(*) AS mean_return
    FROM episode_rows
    WHERE split = 'train' AND branch_of IS NULL
    GROUP BY
        "set",
        host_key
)

SELECT
    *,
    percent_rank() OVER (PARTITION BY "set" ORDER BY mean_return DESC) AS difficulty
FROM hosts
