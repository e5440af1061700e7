"""MongoDB change streams: what to ask for, what the answers mean, and the conversation."""
