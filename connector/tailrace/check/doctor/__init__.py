"""`tailrace doctor`: more facts than a start needs, and rules that turn them into findings. It changes nothing."""
