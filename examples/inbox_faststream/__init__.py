"""Order totals with FastStream, SQLAlchemy and the inbox."""
