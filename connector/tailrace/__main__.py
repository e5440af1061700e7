"""`python -m tailrace`: the same as the `tailrace` command."""

from tailrace.cli import main

main()
