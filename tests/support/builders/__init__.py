"""Objects made by hand, the same for the same arguments: reports, snapshots, policies, observations, hosts."""
