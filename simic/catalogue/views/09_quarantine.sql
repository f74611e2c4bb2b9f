-- All refused lines with the reason. Duplicates are included, although nothing is lost by them.
-- grain: one line of one delivery
-- key: quarantine_id
-- inputs: internal.refused
-- column quarantine_id: Id of the line, the same on every redelivery.
-- column reason: Reason for the refusal, see below; of several, the one that was new last.
-- column message: Explanation with the position in the report; once the quarantine is full, also the number of lines of the batch that this row stands for.
-- column source: Delivery that contained the line.
-- column line: Number of the line in the delivery, from 1; 0 stands for the delivery as a whole.
-- column report_id: Id of the report, if it is readable.
-- column size_bytes: Size in bytes of the part that was read.
-- column raw_sha256: SHA-256 of the part that was read.
-- column raw: First 16 KiB of the line as text, escaped as \xNN if not UTF-8. Empty if none of its bytes were kept: for duplicates, and for lines that only came once the quarantine was full.
-- column seen_at: Time at which the line was first refused for this reason.
WITH refused AS (
    SELECT
        *,
        min(seen_at) OVER (PARTITION BY quarantine_id, reason) AS first_seen_at,
        -- The newest row of a line may be one that was written without bytes.
        arg_max(raw, seen_at) FILTER (WHERE octet_length(raw) > 0) OVER (PARTITION BY quarantine_id) AS kept
    FROM internal.refused
)

SELECT
    quarantine_id,
    reason,
    message,
    source,
    line,
    report_id,
    size_bytes,
    raw_sha256,
    coalesce(try(decode(kept)), kept::VARCHAR, '') AS raw,
    first_seen_at AS seen_at
FROM refused
QUALIFY row_number() OVER (
    -- The message of a row without bytes may stand for a whole batch.
    PARTITION BY quarantine_id ORDER BY first_seen_at DESC, reason, octet_length(raw) = 0, seen_at DESC, message
) = 1
