"""What every x86-64 target shares: instruction-set levels as data, and the spec they make."""
