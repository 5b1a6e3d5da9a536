"""Who calls and what they may use: keys, tenants, limits, money, and the ledger of what was used."""
