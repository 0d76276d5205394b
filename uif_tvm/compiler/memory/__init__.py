"""Static memory planning: what lives when, where it goes, and the proof that nothing overlaps."""
