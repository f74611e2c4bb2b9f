"""What a policy is judged by: trials on held-out hosts, logged episodes, and the plan books of the baselines."""
