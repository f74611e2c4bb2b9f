-- Difficulty of each training host, without branches.
-- grain:  one training host
-- key:    set, host_key
-- inputs: difficulty_rows
SELECT *
FROM difficulty_rows
ORDER BY
    "set",
    host_key
