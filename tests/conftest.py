"""A list of plugins: each fixture file holds one kind of help."""

pytest_plugins = ["fix_stack", "fix_service", "fix_shop", "fix_users", "fix_parking", "fix_projection"]
