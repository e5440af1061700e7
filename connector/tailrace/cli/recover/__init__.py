"""`tailrace recover`: plans and runs recoveries."""
