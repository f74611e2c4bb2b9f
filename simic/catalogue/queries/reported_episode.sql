-- Reports of the newest landed episode that ended and whose id begins with some digits. Of a state they have the fields
-- that a record has too; the rest, above all the graph, can take a megabyte. Every report of an episode has a step below
-- its horizon, so the limit never cuts a whole episode off.
-- grain: one report
-- key: report_id
-- inputs: reports
-- parameter run: First digits of the episode's id.
WITH chosen AS (
    SELECT max_by(run_id, issued_at) AS run_id
    FROM reports
    WHERE starts_with(run_id, $run) AND (terminated OR truncated)
)

SELECT
    run_id,
    step,
    terminated OR truncated AS has_end,
    host,
    controller,
    action,
    metrics,
    governor,
    mitigation,
    if(state IS NULL, NULL, {
        'horizon': state.horizon,
        'validation_accuracy': state.validation_accuracy,
        'validation_loss': state.validation_loss,
        'committed_validation_accuracy': state.committed_validation_accuracy,
        'train_loss': state.train_loss,
        'slots': list_transform(state.slots, lambda slot: {
            'stage': slot.stage,
            'blueprint': slot.blueprint,
            'alpha': slot.alpha,
            'contribution': slot.contribution,
            'contribution_error': slot.contribution_error
        })
    }) AS state,
    if(final_state IS NULL, NULL, {
        'horizon': final_state.horizon,
        'validation_accuracy': final_state.validation_accuracy,
        'validation_loss': final_state.validation_loss,
        'committed_validation_accuracy': final_state.committed_validation_accuracy,
        'train_loss': final_state.train_loss,
        'slots': list_transform(final_state.slots, lambda slot: {
            'stage': slot.stage,
            'blueprint': slot.blueprint,
            'alpha': slot.alpha,
            'contribution': slot.contribution,
            'contribution_error': slot.contribution_error
        })
    }) AS final_state
FROM reports
WHERE run_id = (SELECT run_id FROM chosen)
ORDER BY step, report_id
LIMIT (SELECT max(state.horizon) + 1 FROM reports WHERE run_id = (SELECT run_id FROM chosen))
