"""Random graphs over the whole operator set: every level must match the unoptimised result."""
