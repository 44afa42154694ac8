"""The transfer benchmark: what a learning rate is worth that was searched on a tiny base only."""
