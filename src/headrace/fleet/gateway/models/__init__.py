"""From the name that a client asked for to models and versions: aliases, splits, tiers, fallbacks, shadows."""
