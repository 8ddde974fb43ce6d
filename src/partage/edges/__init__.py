"""Outside systems behind small ports. Edges translate; they never know each other, and never decide."""
