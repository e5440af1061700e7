"""Dead letters: events that cannot be published, kept with their reason until a person resolves them."""
