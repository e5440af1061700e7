"""`tailrace replay`: plans and runs replays."""
