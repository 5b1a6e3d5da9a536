"""Objectives of service: what was good, how fast budgets burn, who is told. All but the sender is pure."""
