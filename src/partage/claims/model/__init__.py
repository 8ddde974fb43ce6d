"""Values of claims: slices, claims as the API server has them, what a claim got, records."""
