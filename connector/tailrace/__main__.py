"""`python -m tailrace` runs the `tailrace` command."""

from tailrace.cli import main

main()
