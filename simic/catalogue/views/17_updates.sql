-- All policy updates that this home delivered to production.
-- The signatures are not checked here; `simic doctor` checks them.
-- grain: one delivered update
-- key: update_id
-- inputs: internal.delivered_updates
-- column update_id: Event id of the update, from its envelope on the bus.
-- column correlation_id: Correlation id of its envelope: the snapshot of the policy's own training; null in updates of earlier versions.
-- column name: Name of the registered model.
-- column semantic_version: Version that it tells of.
-- column policy: Digest of the sealed policy.
-- column reference: Reference to the version in the registry.
-- column targets: Controllers that are to use the policy.
-- column share: Share of the consumers that use it while its rollout lasts; null if all do.
-- column issued_at: Time at which it was signed.
SELECT
    event_id AS update_id,
    correlation_id,
    policy_name AS name,
    version AS semantic_version,
    digest AS policy,
    reference,
    targets,
    share,
    issued_at
FROM internal.delivered_updates
