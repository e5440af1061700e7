"""Delivery marks of a running pipeline: the thread that writes them, and what it reads and writes."""
