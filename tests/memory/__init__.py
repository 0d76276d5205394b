"""How much memory models need, and how many kernels, beside what other engines need."""
