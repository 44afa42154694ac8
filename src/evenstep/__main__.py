"""Run the command line as `python -m evenstep`."""

from evenstep.cli import main

main()
