"""Research on evenstep: studies, search spaces, data sets and their commands."""
