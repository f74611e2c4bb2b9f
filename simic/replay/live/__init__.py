"""A replay buffer in memory that receives sequences while a learner draws from it."""
