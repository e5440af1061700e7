"""Imported by a worker's warm process, so that commands start at once: loads the modules of all operations."""

from tailrace.cli.operations import operations

operations()
