"""Runs any number of pipelines in one worker, each in a process of its own."""
