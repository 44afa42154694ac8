"""NAS-Bench-201 trained fairly: its table, samples of it, and what another way of training does to its rankings."""
