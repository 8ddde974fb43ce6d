"""``partage doctor``: looks at a node, repairs what is safe, packs the support bundle."""
