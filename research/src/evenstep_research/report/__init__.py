"""Pictures and tables of studies, for people."""
