"""Measuring latency: the clockwork of ``uif bench``, and the comparison with other engines."""
