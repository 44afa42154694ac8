"""The command line. Results go to standard output, progress to standard error; exit code 2 means bad input."""

from evenstep.cli.app import main

__all__ = ["main"]
