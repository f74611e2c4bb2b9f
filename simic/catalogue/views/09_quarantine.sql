-- Every line that did not become experience, and why. Duplicates stand here too, though nothing was lost by them.
-- grain: one line of one delivery
-- key: quarantine_id
-- inputs: internal.refused
-- column quarantine_id: The same however often the line is delivered.
-- column reason: The kind of fault; see below.
-- column message: What was wrong and where; once the quarantine was full, also for how many lines of its batch this one stands.
-- column source: The delivery it came in.
-- column line: Its line in that delivery, from 1; 0 stands for the delivery as a whole.
-- column report_id: If it could be read.
-- column size_bytes: Of what was read of the line.
-- column raw_sha256: Of what was read of the line.
-- column raw: Its first 16 KiB as text; if they are not UTF-8, escaped as \xNN. Empty for duplicates, and once the quarantine was full.
-- column seen_at: When it was first refused.
SELECT
    quarantine_id,
    reason,
    message,
    source,
    line,
    report_id,
    size_bytes,
    raw_sha256,
    coalesce(try(decode(raw)), raw::VARCHAR) AS raw,
    seen_at
FROM internal.refused
QUALIFY row_number() OVER (PARTITION BY quarantine_id ORDER BY seen_at, reason) = 1
