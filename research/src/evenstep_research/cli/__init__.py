"""The commands of research, which `evenstep` finds by entry points."""
