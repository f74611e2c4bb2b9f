-- Mean and deviation of every measured number of the state, for normalising features: one version per set of numbers.
-- Taken over the training episodes with the smallest run ids; ids are hashes, so this is a random sample. Branches do
-- not count: they repeat the states of their parents, and their own do not follow from a controller's choices. Values
-- are clipped to a million and summed as whole millionths, so sums do not depend on the order of rows.
-- present: rows that have the value; an unmeasured value is null, not 0.
-- grain:  one number of one kind of node
-- key:    node, name
-- inputs: reports, reward_terms, episode_rows; $statistics_episodes
WITH chosen AS (
    SELECT run_id
    FROM episode_rows
    WHERE split = 'train' AND branch_of IS NULL
    ORDER BY run_id
    LIMIT $statistics_episodes
),

sample AS (
    SELECT state
    FROM reports
    SEMI JOIN (SELECT row_id FROM reward_terms SEMI JOIN chosen USING (run_id)) USING (row_id)
),

numbers AS (
    SELECT
        'context' AS node,
        unnest([
            'epoch', 'horizon', 'seeds_alive', 'seeds_max', 'seed_parameters', 'train_loss', 'train_accuracy',
            'validation_loss', 'validation_accuracy'
        ]) AS name,
        unnest([
            state.epoch::DOUBLE, state.horizon, state.seeds_alive, state.seeds_max, state.seed_parameters,
            state.train_loss, state.train_accuracy, state.validation_loss, state.validation_accuracy
        ]) AS number
    FROM sample
    UNION ALL
    SELECT
        'slot',
        unnest([
            'alpha', 'alpha_target', 'stage_epochs', 'age_epochs', 'tempo', 'gradient_norm', 'gradient_health',
            'contribution', 'contribution_error', 'contribution_epochs', 'parameters', 'risk'
        ]),
        unnest([
            slot.alpha::DOUBLE, slot.alpha_target, slot.stage_epochs, slot.age_epochs, slot.tempo, slot.gradient_norm,
            slot.gradient_health, slot.contribution, slot.contribution_error, slot.contribution_epochs,
            slot.parameters, slot.risk
        ])
    FROM (SELECT unnest(state.slots) AS slot FROM sample)
    UNION ALL
    SELECT
        'layer',
        unnest(['width', 'hidden_width', 'activation_spread', 'weight_norm', 'gradient_norm']),
        unnest([
            layer.width::DOUBLE, layer.hidden_width, layer.activation_spread, layer.weight_norm, layer.gradient_norm
        ])
    FROM (SELECT unnest(state.graph.layers) AS layer FROM sample)
),

clipped AS (
    SELECT
        *,
        CASE -- least and greatest pass over null, which must stay one
            WHEN number IS NOT NULL
                THEN round(greatest(-1e6::DOUBLE, least(1e6::DOUBLE, number)) * 1e6::DOUBLE)::HUGEINT
        END AS millionths
    FROM numbers
),

counted AS (
    SELECT
        node,
        name,
        count(*) AS total,
        count(number) AS present,
        min(number) AS lowest,
        max(number) AS highest,
        sum(millionths)::DOUBLE AS millionths,
        sum(millionths * millionths)::DOUBLE AS squares
    FROM clipped
    GROUP BY
        node,
        name
),

statistics AS (
    SELECT
        node,
        name,
        total,
        present,
        lowest,
        highest,
        millionths / present::DOUBLE / 1e6::DOUBLE AS mean,
        sqrt(greatest(0.0::DOUBLE, squares / present::DOUBLE - (millionths / present::DOUBLE) ** 2)) / 1e6::DOUBLE
            AS deviation
    FROM counted
)

SELECT
    *,
    sha256((SELECT string_agg(to_json(row)::VARCHAR, chr(10) ORDER BY node, name) FROM statistics AS row)) AS version
FROM statistics
ORDER BY
    node,
    name
