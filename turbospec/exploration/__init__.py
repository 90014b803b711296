"""What is tried in order to learn: the value of an experiment. Its budget is in `turbospec.policy.adaptive`."""
