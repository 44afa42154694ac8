"""Tables of trainings that others measured: what rules would have said, and what it would have cost."""
