"""A list of plugins: each fixture file holds one kind of help."""

import pytest

pytest.register_assert_rewrite("store_contract", "store_contract_records", "store_scenes")

pytest_plugins = ["fix_stack", "fix_service", "fix_shop", "fix_users", "fix_parking", "fix_projection"]
