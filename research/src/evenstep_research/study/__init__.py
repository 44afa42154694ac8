"""Studies: whole experiments as functions that return records."""
